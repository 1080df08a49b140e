// Where samples come from and how they are batched.
#pragma once

#include <headrace/options.h>
#include "image/transform_options.h"

namespace headrace {

enum class LastBatch { keep, drop };
constexpr auto choices(LastBatch) {
  return std::array{Choice<LastBatch>{LastBatch::keep, "keep"}, Choice<LastBatch>{LastBatch::drop, "drop"}};
}

struct DataOptions {
  std::string source;                 // "idx:DIR" or "folder:DIR". No default: a recipe names its data.
  std::int64_t batch_size = 128;      // Samples in a batch.
  std::int64_t threads = 1;           // Loader threads; 0: the training thread loads. Live knob; never changes a byte.
  std::int64_t prefetch_batches = 2;  // Batches ready or in the making ahead of the consumer. Live knob. Costs memory.
  LastBatch last_batch = LastBatch::keep;
  bool shuffle = true;  // A new order each epoch, from (seed, epoch) alone.
  TransformOptions transform;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, DataOptions>
void describe(Visitor& visit, Options& o) {
  visit("source", o.source,
        "Where samples come from: idx:DIR, a folder with the four gzip IDX files of MNIST or Fashion-MNIST; folder:DIR, "
        "JPEG and PNG files in DIR/train/CLASS and DIR/test/CLASS (or DIR/val/CLASS).");
  visit("batch_size", o.batch_size, Range<std::int64_t>{1, 65536}, "Samples in a batch.");
  visit("threads", o.threads, Range<std::int64_t>{0, 256},
        "Loader threads; 0 loads in the training thread. Changes no byte of any batch.");
  visit("prefetch_batches", o.prefetch_batches, Range<std::int64_t>{1, 64},
        "Batches prepared ahead of the training loop; each costs one batch of memory.");
  visit("last_batch", o.last_batch,
        "The batch left over at an epoch's end: keep it small, or drop it (training only).");
  visit("shuffle", o.shuffle, "Draw a new order each epoch, from the seed and the epoch alone (training only).");
  visit("transform", o.transform, "How a sample becomes a tensor.");
}

}  // namespace headrace
