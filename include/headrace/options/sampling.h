// Which samples come when, and to which process.
#pragma once

#include <headrace/options.h>

#include <array>
#include <cstdint>
#include <string>

namespace headrace {

enum class Sampler { each, weighted, class_balanced };
constexpr auto choices(Sampler) {
  return std::array{Choice<Sampler>{Sampler::each, "each"}, Choice<Sampler>{Sampler::weighted, "weighted"},
                    Choice<Sampler>{Sampler::class_balanced, "class_balanced"}};
}

enum class BucketBy { bytes, shape };
constexpr auto choices(BucketBy) {
  return std::array{Choice<BucketBy>{BucketBy::bytes, "bytes"}, Choice<BucketBy>{BucketBy::shape, "shape"}};
}

// Of describe(): which samples come when, and to whom.
template <class Visitor, class Options>
void describe_order(Visitor& visit, Options& o) {
  visit("shuffle", o.shuffle, "Draw a new order each epoch, from the seed and the epoch alone (training only).");
  visit("shuffle_window", o.shuffle_window, Range<std::int64_t>{0, std::int64_t{1} << 40},
        "For data in shards that are read from beginning to end: shuffle the shards, and the samples in windows of so "
        "many only; 0 shuffles all samples.");
  visit("buckets", o.buckets, Range<std::int64_t>{0, 4096},
        "Sort the samples into so many buckets of samples that are alike (bucket_by) and fill each batch from one of "
        "them; 0 does not sort (training only).");
  visit("bucket_by", o.bucket_by,
        "What the samples of a bucket are alike in: bytes, the size of the file, by which they cost alike to read and "
        "decode; or shape, the height and width of the image as it is stored, by which whoever pads a batch to its "
        "largest image wastes little. For shape the headers of all images are read when the loader is built.");
  visit("sampler", o.sampler,
        "each takes every sample once an epoch; weighted draws as many with replacement, each with its weight in "
        "weights; class_balanced the same with equal chances for the classes (training only).");
  visit("weights", o.weights, Range<double>{0.0, 1e12},
        "Weights of sampler = weighted, relative to one another: one a class, which all its samples have, or one a "
        "sample.");
  visit("world_size", o.world_size, Range<std::int64_t>{1, 65536},
        "Processes that train together. Their batches, taken in turns, are those of one process; each loads its own "
        "only.");
  visit("rank", o.rank, Range<std::int64_t>{0, 65535}, "Rank of this process, 0 to world_size - 1.");
  visit("in_order", o.in_order,
        "Give the batches of an epoch in its order. false gives each as soon as it is whole, so that one slow file "
        "holds up its own batch alone: the same batches, in an order that differs from run to run, and no state within "
        "an epoch. A recipe's batches come in order.");
}

}  // namespace headrace
