// Where samples come from and how they are batched.
#pragma once

#include <headrace/options.h>
#include "image/transform_options.h"

namespace headrace {

enum class LastBatch { keep, drop };
constexpr auto choices(LastBatch) {
  return std::array{Choice<LastBatch>{LastBatch::keep, "keep"}, Choice<LastBatch>{LastBatch::drop, "drop"}};
}

enum class OnCorrupt { fail, replace, zero };
constexpr auto choices(OnCorrupt) {
  return std::array{Choice<OnCorrupt>{OnCorrupt::fail, "fail"}, Choice<OnCorrupt>{OnCorrupt::replace, "replace"},
                    Choice<OnCorrupt>{OnCorrupt::zero, "zero"}};
}

enum class Cache { none, decoded };
constexpr auto choices(Cache) {
  return std::array{Choice<Cache>{Cache::none, "none"}, Choice<Cache>{Cache::decoded, "decoded"}};
}

enum class IndexUse { none, use, build };
constexpr auto choices(IndexUse) {
  return std::array{Choice<IndexUse>{IndexUse::none, "none"}, Choice<IndexUse>{IndexUse::use, "use"},
                    Choice<IndexUse>{IndexUse::build, "build"}};
}

struct DataOptions {
  std::string source;                 // "idx:DIR", "folder:DIR" or "pack:PATH". No default: a recipe names its data.
  std::int64_t batch_size = 128;      // Samples in a batch.
  std::int64_t threads = 1;           // Loader threads; 0: the training thread loads. Live knob; never changes a byte.
  std::int64_t prefetch_batches = 2;  // Batches ready or in the making ahead of the consumer. Live knob. Costs memory.
  LastBatch last_batch = LastBatch::keep;
  bool shuffle = true;                     // A new order each epoch, from (seed, epoch) alone.
  OnCorrupt on_corrupt = OnCorrupt::fail;  // What becomes of a sample that cannot be read or decoded.
  Cache cache = Cache::none;               // Decoded pictures in memory. Live knob; never changes a byte.
  std::int64_t cache_mib = 0;              // Bound of the cache, in MiB; 0: half of what the memory limit leaves free.
  IndexUse index = IndexUse::use;          // Of JPEG files, for crops. Only build writes to the data's folder.
  TransformOptions transform;
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, DataOptions>
void describe(Visitor& visit, Options& o) {
  visit(
      "source", o.source,
      "Where samples come from: idx:DIR, a folder with the four gzip IDX files of MNIST or Fashion-MNIST; folder:DIR, "
      "JPEG and PNG files in DIR/train/CLASS and DIR/test/CLASS (or DIR/val/CLASS); pack:PATH, what `headrace pack` "
      "wrote.");
  visit("batch_size", o.batch_size, Range<std::int64_t>{1, 65536}, "Samples in a batch.");
  visit("threads", o.threads, Range<std::int64_t>{0, 256},
        "Loader threads; 0 loads in the training thread. Changes no byte of any batch.");
  visit("prefetch_batches", o.prefetch_batches, Range<std::int64_t>{1, 64},
        "Batches prepared ahead of the training loop; each costs one batch of memory.");
  visit("last_batch", o.last_batch,
        "The batch left over at an epoch's end: keep it small, or drop it (training only).");
  visit("shuffle", o.shuffle, "Draw a new order each epoch, from the seed and the epoch alone (training only).");
  visit(
      "on_corrupt", o.on_corrupt,
      "A sample that cannot be read or decoded: fail ends the run and names it; replace takes another one, drawn from "
      "the seed, in training and zero in evaluation; zero gives a picture of zeros that counts neither in the loss nor "
      "in a metric.");
  visit("cache", o.cache,
        "decoded keeps decoded pictures in memory until the bound, from one epoch to the next. Changes no byte of any "
        "batch; without effect where the source holds pixels.");
  visit("cache_mib", o.cache_mib, Range<std::int64_t>{0, std::int64_t{1} << 24},
        "Bound of the cache in MiB; 0 is half of what the memory limit leaves free when the cache is switched on.");
  visit(
      "index", o.index,
      "The entropy index of a folder's JPEG files, with which a crop is decoded without what lies before it. use reads "
      "what lies beside the data (`headrace pack --index` makes it); build also makes what is missing while the "
      "first epoch decodes, and writes it at that epoch's end. Changes no byte of any batch.");
  visit("transform", o.transform, "How a sample becomes a tensor.");
}

}  // namespace headrace
