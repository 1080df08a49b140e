// Which sample stands at which position of an epoch, and which positions a rank takes in which batch.
#pragma once

#include <headrace/options/data.h>
#include <headrace/source.h>

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/random.h"

namespace headrace::detail {

// Draws 0 .. size - 1 with given chances in constant time: the alias method of Walker as built by Vose ("A linear
// algorithm for generating random numbers with a given distribution", IEEE Transactions on Software Engineering 1991).
// 8 bytes an element. Chances are exact to 2^-32 of a mean one.
class AliasTable {
 public:
  AliasTable() = default;
  // `weights`: finite, at least 0, not all 0, at most 2^32.
  explicit AliasTable(const std::vector<double>& weights);
  // Of random words: two choose the slot, the third between its two elements.
  std::int64_t draw(const std::array<std::uint32_t, 4>& words) const noexcept;

 private:
  struct Slot {
    std::uint32_t threshold;  // Of 2^32: below it the slot's own element is drawn.
    std::uint32_t other;
  };
  std::vector<Slot> slots_;
};

// What the orders of all epochs have alike. Built once a Loader: nothing for a plain order; for weights 8 bytes a
// sample, for buckets 8, for a window 8 a shard.
class Order {
 public:
  // Throws Error{invalid_argument} for weights that are neither one a class nor one a sample, or all 0, and what
  // by_likeness throws (data/loader/detail/buckets.h).
  Order(const Source& source, const DataOptions& options, std::uint64_t seed, bool training);

  std::int64_t positions() const noexcept { return size_; }  // Of an epoch; all ranks together.
  // A sample may come several times an epoch: what is drawn for it must depend on the position, too.
  bool repeats() const noexcept { return kind_ == Kind::weighted; }

 private:
  friend class EpochOrder;
  enum class Kind { sequential, shuffled, windowed, weighted, bucketed };

  static Kind kind_of(const DataOptions& options, bool training);
  void read_weights(const Source& source, const DataOptions& options);

  const std::int64_t size_;
  const std::uint64_t seed_;
  const Kind kind_;
  std::int64_t step_ = 1;   // Samples that stay together when steps are shuffled.
  std::int64_t group_ = 1;  // Samples of a window or of a bucket.
  AliasTable alias_;
  std::vector<std::int64_t> shards_;  // Samples of each.
  std::vector<std::int64_t> alike_;   // Samples in buckets of group_.
};

// The order of one epoch. Refers to its Order. Thread-safe.
class EpochOrder {
 public:
  EpochOrder(const Order& order, std::int64_t epoch);
  // Sample at `position`, 0 .. positions() - 1, whatever rank takes it. Costs a permutation, two when there are
  // buckets.
  std::int64_t sample_at(std::int64_t position) const noexcept;

 private:
  std::int64_t in_window(std::int64_t position) const noexcept;
  std::int64_t in_shards(std::int64_t place) const noexcept;
  std::int64_t in_bucket(std::int64_t position) const noexcept;

  const Order& order_;
  const std::int64_t epoch_;
  const Permutation whole_;                              // Of samples; of whole steps when there are buckets.
  const Permutation in_group_;                           // Within a window or a bucket.
  const Permutation in_last_;                            // Within the last one, which may be smaller.
  std::vector<std::int64_t> shard_begins_, shard_ends_;  // Of the shuffled shards: first index, last position + 1.
};

// How the positions of an epoch are assigned: each step takes batch_size a rank, one rank after the other, so that the
// ranks' batches taken in turns are those of one rank. The positions left over at the end are assigned in equal parts;
// a place that no position is left for repeats one from the epoch's beginning and does not count.
class BatchSampler {
 public:
  // From `begin` on, a position where a batch may start, which is this rank's batch `first_batch`. With drop in
  // `last_batch` what is left over is not assigned.
  BatchSampler(std::int64_t positions, const DataOptions& options, LastBatch last_batch, std::int64_t begin) noexcept;

  struct Slice {
    std::int64_t size;     // Places of the batch.
    std::int64_t counted;  // The first of them, which count: positions from `begin` on.
    std::int64_t begin;
    std::int64_t repeated;  // Positions of the others, from here on, modulo the epoch's.
  };
  Slice slice(std::int64_t batch) const noexcept;

  std::int64_t begin() const noexcept { return begin_; }
  std::int64_t first_batch() const noexcept { return begin_ / step(); }
  std::int64_t end_batch() const noexcept;  // One more than the last.
  // Where the step after that of `batch`, which is not the last, begins.
  std::int64_t position_after(std::int64_t batch) const noexcept {
    return begin_ + (batch + 1 - first_batch()) * step();
  }
  std::int64_t position_of(const Slice& slice, std::int64_t place) const noexcept {
    return place < slice.counted ? slice.begin + place : (slice.repeated + place - slice.counted) % positions_;
  }

 private:
  std::int64_t step() const noexcept { return batch_size_ * ranks_; }

  std::int64_t positions_, batch_size_, ranks_, rank_;
  LastBatch last_batch_;
  std::int64_t begin_;
};

}  // namespace headrace::detail
