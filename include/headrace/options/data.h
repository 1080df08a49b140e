// Where samples come from and how they are batched.
#pragma once

#include <headrace/options.h>
#include <headrace/options/sampling.h>
#include <headrace/options/transform.h>
#include <headrace/options/transforms.h>

#include <array>
#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace headrace {

enum class LastBatch { keep, drop, pad };
constexpr auto choices(LastBatch) {
  return std::array{Choice<LastBatch>{LastBatch::keep, "keep"}, Choice<LastBatch>{LastBatch::drop, "drop"},
                    Choice<LastBatch>{LastBatch::pad, "pad"}};
}

enum class OnCorrupt { fail, replace, zero };
constexpr auto choices(OnCorrupt) {
  return std::array{Choice<OnCorrupt>{OnCorrupt::fail, "fail"}, Choice<OnCorrupt>{OnCorrupt::replace, "replace"},
                    Choice<OnCorrupt>{OnCorrupt::zero, "zero"}};
}

enum class Cache { none, decoded, encoded, automatic };
constexpr auto choices(Cache) {
  return std::array{Choice<Cache>{Cache::none, "none"}, Choice<Cache>{Cache::decoded, "decoded"},
                    Choice<Cache>{Cache::encoded, "encoded"}, Choice<Cache>{Cache::automatic, "auto"}};
}

enum class IndexUse { none, use, build };
constexpr auto choices(IndexUse) {
  return std::array{Choice<IndexUse>{IndexUse::none, "none"}, Choice<IndexUse>{IndexUse::use, "use"},
                    Choice<IndexUse>{IndexUse::build, "build"}};
}

// Upper limits for one sample. A larger one is rejected before memory is allocated.
struct SampleLimits {
  std::int64_t pixels = 178'956'970;             // As many as Pillow opens.
  std::int64_t bytes = std::int64_t{256} << 20;  // As it is stored.
};

struct DataOptions {
  std::string source{};           // "folder:DIR" for one. No default.
  double val_fraction = 0;        // Of the training samples, held out as the split val where the source is opened.
  std::int64_t batch_size = 128;  // Samples in a batch.
  std::int64_t num_workers = 1;   // Threads that load; 0: the training thread loads. Live knob; never changes a byte.
  std::int64_t num_workers_max = 0;   // Of num_workers = AUTOTUNE; 0: the larger of 16 and twice the usable cores.
  std::int64_t prefetch_batches = 2;  // Batches ready or in the making ahead of the consumer. Live knob. Costs memory.
  std::int64_t prefetch_mib = 0;      // Bound of these batches, in MiB; 0: a quarter of the memory limit.
  bool auto_tune = true;              // What is auto adapts; false: it stays as it begins.
  LastBatch last_batch = LastBatch::keep;
  bool shuffle = true;                   // A new order each epoch, from (seed, epoch) alone.
  std::int64_t shuffle_window = 0;       // Shuffles shards, and samples in windows of so many; 0: all samples at once.
  std::int64_t buckets = 0;              // Of samples that are alike; a batch comes from one of them. 0: no buckets.
  BucketBy bucket_by = BucketBy::bytes;  // In what they are alike.
  Sampler sampler = Sampler::each;       // Each sample once an epoch, or as many draws with replacement.
  std::vector<double> weights{};         // sampler = weighted: one a class or one a sample.
  std::int64_t world_size = 1;           // Processes that share the epoch; each loads its part.
  std::int64_t rank = 0;                 // Of this process: 0 to world_size - 1.
  bool in_order = true;                  // Batches come in the epoch's order, or as they get ready.
  OnCorrupt on_corrupt = OnCorrupt::fail;  // What becomes of a sample that cannot be read or decoded.
  Cache cache = Cache::none;               // Samples kept in memory. Live knob; never changes a byte.
  std::int64_t cache_mib = 0;              // Bound of the cache, in MiB; 0: half of what the memory limit leaves free.
  IndexUse index = IndexUse::use;          // Of JPEG files, for crops. Only build writes to the data's folder.
  bool scale_decode = false;               // JPEG files smaller than they are, where a crop needs no more.
  std::int64_t max_pixels = SampleLimits{}.pixels;       // Of an image; a larger one counts as corrupt.
  std::int64_t max_sample_bytes = SampleLimits{}.bytes;  // Of a sample as it is stored, likewise.
  TransformOptions transform{};
  // Operations, in place of `transform`, of which only `layout` may be set then; and those of evaluation, which follow
  // from them where there are none.
  std::vector<TransformSpec> transforms{}, eval_transforms{};

  SampleLimits limits() const noexcept { return {max_pixels, max_sample_bytes}; }
};

template <class Visitor, class Options>
requires std::same_as<std::remove_const_t<Options>, DataOptions>
void describe(Visitor& visit, Options& o) {  // NOLINT(readability-function-size): a list, with an entry an option
  visit(
      "source", o.source,
      "Where samples come from: idx:DIR, a folder with the IDX files of MNIST or Fashion-MNIST, gzip or plain; "
      "folder:DIR, JPEG and PNG files in DIR/train/CLASS, DIR/val/CLASS and DIR/test/CLASS; classes:DIR, such files in "
      "DIR/CLASS, all to train on; list:FILE, such files by a text file of paths and labels; pack:PATH, what `headrace "
      "pack` wrote; csv:FILE, a table of numbers with a sample in "
      "each line.");
  visit("val_fraction", o.val_fraction, Range<double>{0.0, 0.5},
        "Share of the training samples that is held out as the split val, drawn from the seed alone; for data without "
        "a val of their own. The best checkpoint is chosen by val; 0 holds out nothing.");
  visit("batch_size", o.batch_size, Range<std::int64_t>{1, 65536}, "Samples in a batch.");
  visit("num_workers", o.num_workers, Range<std::int64_t>{0, 256, kOrAuto},
        "Threads that load samples beside the training thread; 0 loads in the training thread; auto finds while it "
        "runs how many are enough. Changes no byte of any batch.");
  visit(
      "num_workers_max", o.num_workers_max, Range<std::int64_t>{0, 256},
      "The most that num_workers = auto may take; 0 is the larger of 16 and twice the cores that the process may use. "
      "More than the cores are taken only where reading waits.");
  visit("prefetch_batches", o.prefetch_batches, Range<std::int64_t>{1, 64, kOrAuto},
        "Batches prepared ahead of the training loop, each of which costs one batch of memory; auto raises it until "
        "the loop no longer waits.");
  visit("prefetch_mib", o.prefetch_mib, Range<std::int64_t>{0, std::int64_t{1} << 24},
        "Bound in MiB of the batches prepared ahead, whatever prefetch_batches says; one batch is always prepared. 0 "
        "is a quarter of the memory limit for auto, and no bound for a number.");
  visit("auto_tune", o.auto_tune,
        "Whether num_workers, prefetch_batches and cache, where they are auto, adapt to what is measured. With false "
        "nothing is decided: they stay as they begin, with 1, 2 and none.");
  visit(
      "last_batch", o.last_batch,
      "The batch left over at an epoch's end: keep it small, drop it (training only), or pad it to full size with the "
      "epoch's first samples, which count neither in the loss nor in a metric.");
  describe_order(visit, o);
  visit(
      "on_corrupt", o.on_corrupt,
      "A sample that cannot be read or decoded: fail ends the run and names it; replace takes another one, drawn from "
      "the seed, in training and zero in evaluation; zero gives an image of zeros that counts neither in the loss nor "
      "in a metric.");
  visit("cache", o.cache,
        "What stays in memory until the bound, from one epoch to the next: decoded keeps decoded images, encoded the "
        "JPEG and PNG files as they were read; auto chooses while it runs, from what reading and decoding take and how "
        "much would fit, and takes back what does not pay. Changes no byte of any batch; without effect where the "
        "source holds pixels in memory, and encoded where it gives pixels, no files.");
  visit(
      "cache_mib", o.cache_mib, Range<std::int64_t>{0, std::int64_t{1} << 24},
      "Bound of the cache in MiB; 0 is half of the memory that is free when the cache is switched on. A cache that it "
      "replaces counts as free.");
  visit(
      "index", o.index,
      "The entropy index of a folder's JPEG files, with which a crop is decoded without what lies before it. use reads "
      "what lies beside the data (`headrace pack --index` makes it); build also makes what is missing while the "
      "first epoch decodes, and writes it at that epoch's end. Changes no byte of any batch.");
  visit("scale_decode", o.scale_decode,
        "Decode a JPEG at a half, a quarter or an eighth of its size where the crop is then still at least twice the "
        "batch's images: faster on large images, and not the same pixels (about 40 dB PSNR and more). Without it "
        "every image is decoded as it is.");
  visit("max_pixels", o.max_pixels, Range<std::int64_t>{1, std::int64_t{65'535} * 65'535},
        "An image of more pixels is rejected by its header, before memory is allocated, and handled by "
        "on_corrupt; 178956970 is Pillow's limit. A sample is refused, too, where an operation of "
        "data.transforms would make more pixels of an image of its size. A decoded pixel takes 3 bytes in each worker; "
        "progressive "
        "JPEG and interlaced PNG, which are held whole, may have a quarter of it.");
  visit("max_sample_bytes", o.max_sample_bytes, Range<std::int64_t>{1, std::int64_t{1} << 30},
        "A sample of more bytes, as it is stored, is refused before it is read, and handled by on_corrupt.");
  visit("transform", o.transform, "How a sample becomes a tensor.");
  visit("transforms", o.transforms,
        "What is done to each sample, in this order: operations by the names and parameters that they have in "
        "torchvision.transforms.v2. They take the place of data.transform, whose layout alone goes with them.");
  visit("eval_transforms", o.eval_transforms,
        "What is done in evaluation instead of data.transforms. Left out, it follows from these: random crops take the "
        "center, of a resized image where it may be larger, and what else is drawn at random is not done.");
}

// Samples of an epoch that all ranks take in one step.
inline std::int64_t samples_a_step(const DataOptions& options) noexcept {
  return options.batch_size * options.world_size;
}

// Batches that each rank gets of so many samples; 0 when `drop` leaves none.
inline std::int64_t batches_of(std::int64_t samples, std::int64_t samples_a_step, LastBatch last_batch) noexcept {
  const std::int64_t whole = samples / samples_a_step;
  return last_batch == LastBatch::drop || whole * samples_a_step == samples ? whole : whole + 1;
}

}  // namespace headrace
