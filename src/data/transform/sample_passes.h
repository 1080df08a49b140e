// The passes over a sample's values on its way into a batch: which of them an image takes, and what they have moved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "data/transform/fused_stage.h"

namespace headrace::detail {

// In the order in which a sample takes them; none takes all.
enum class SamplePass : std::uint8_t {
  read,
  read_rows,       // Of an image in rows, those that the crop needs.
  decode_region,   // What the crop needs,
  decode_indexed,  // likewise, with the file's entropy index.
  decode_whole,    // For the cache.
  keep,            // Into the cache; a file before it is decoded.
  between,         // Of operations that are not in the last pass, into memory.
  resize,          // To uint8, for `write`.
  resize_write,    // Resize, flip, normalise, type and layout, into the batch.
  write,           // Pad, crop, flip, normalise, type and layout, into the batch.
};
inline constexpr std::size_t kSamplePasses = 10;

// How pixels get into the batch. ImageMaker goes by it, and Loader::explain() tells it.
enum class Writing { as_stored, resized, resized_then_placed };

// `moved`: the pad's crop lies beside the image's own place.
inline Writing writing_of(const transform::FusedStage& stage, bool moved) noexcept {
  if (stage.crop.kind == transform::CropKind::none) return Writing::as_stored;
  return moved ? Writing::resized_then_placed : Writing::resized;
}

// What ImageMaker and the chunk did so far. Bytes.
struct SampleTotals {
  struct Pass {
    std::int64_t samples = 0, in = 0, out = 0;
  };

  void add(SamplePass pass, std::int64_t in, std::int64_t out) noexcept {
    Pass& total = passes[static_cast<std::size_t>(pass)];
    ++total.samples;
    total.in += in;
    total.out += out;
  }
  const Pass& of(SamplePass pass) const noexcept { return passes[static_cast<std::size_t>(pass)]; }
  // Of all files, however they were.
  Pass decoded() const noexcept {
    Pass all;
    for (const SamplePass pass : {SamplePass::decode_region, SamplePass::decode_indexed, SamplePass::decode_whole}) {
      all.samples += of(pass).samples;
      all.in += of(pass).in;
      all.out += of(pass).out;
    }
    return all;
  }
  SampleTotals& operator+=(const SampleTotals& more) noexcept {
    for (std::size_t i = 0; i < kSamplePasses; ++i) {
      passes[i].samples += more.passes[i].samples;
      passes[i].in += more.passes[i].in;
      passes[i].out += more.passes[i].out;
    }
    whole += more.whole;
    boxes += more.boxes;
    unread += more.unread;
    flipped += more.flipped;
    return *this;
  }

  std::array<Pass, kSamplePasses> passes;
  std::int64_t whole = 0;    // Of the images that were decoded, as if all of each had been.
  std::int64_t boxes = 0;    // Of what crops read.
  std::int64_t unread = 0;   // Rows that were not read of images in rows.
  std::int64_t flipped = 0;  // Samples.
};

}  // namespace headrace::detail
