// What of a loader's settings could pay for the data that it reads.
#pragma once

#include <headrace/loader.h>
#include <headrace/options/data.h>
#include <headrace/source.h>

#include <cstdint>

#include "data/transform/fused_stage.h"

namespace headrace {

// Told by 64 images' headers or what their source knows of them.
struct DataContext {
  double cache_share = 0;    // Of the images, those that data.cache = "decoded" has room for: 0 to 1.
  double scaled_share = 0;   // Of the crops, those that data.scale_decode would decode smaller.
  bool trial_index = false;  // Whether there is an index for trials of data.index = "build".
};

// Of a training loader over `source` with these options; whether there is an index for trials is not its to know. All 0
// where the source holds its pixels in memory. Error{out_of_memory} when data.cache_mib is more than there is.
DataContext data_context_of(const Source& source, const Loader& loader, const DataOptions& options, std::uint64_t seed);

// What training takes of an image as it is stored. CropKind::none: all of it, before anything else is done.
transform::CropStage first_crop(const Schema& schema, const DataOptions& options);

}  // namespace headrace
