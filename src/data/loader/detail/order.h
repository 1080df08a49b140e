// Which sample stands at which position of an epoch, and which positions a rank takes in which batch.
#pragma once

#include <headrace/given_order.h>
#include <headrace/options/data.h>
#include <headrace/source.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
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

// A GivenOrder that has been checked. Thread-safe.
class GivenEpoch {
 public:
  // Error{invalid_argument} names the position of an index that is not of `samples`, or the batch that is empty, ends
  // before it begins or has more than `batch_size`, or says that there is no sample.
  GivenEpoch(GivenOrder order, std::int64_t epoch, std::int64_t samples, std::int64_t batch_size);

  std::int64_t positions() const noexcept { return std::ssize(order_.samples); }
  std::int64_t sample_at(std::int64_t position) const noexcept {
    return order_.samples[static_cast<std::size_t>(position)];
  }
  std::int64_t draws_of(std::int64_t position) const noexcept {
    return draws_.empty() ? sample_at(position) : draws_[static_cast<std::size_t>(position)];
  }
  // Null: batches are of one size.
  const std::vector<std::int64_t>* batch_ends() const noexcept {
    return order_.batch_ends.empty() ? nullptr : &order_.batch_ends;
  }
  const std::string& name() const noexcept { return order_.name; }
  std::uint64_t hash() const noexcept { return hash_; }  // Of samples and batches; never 0.

 private:
  void check_batches(std::int64_t epoch, std::int64_t batch_size) const;
  void number_repeated(std::int64_t samples);

  const GivenOrder order_;
  std::vector<std::int64_t> draws_;  // Empty: each sample comes once at most.
  std::uint64_t hash_ = 0;
};

// The order of one epoch. Refers to its Order. Thread-safe.
class EpochOrder {
 public:
  // `given`, where there is one, takes the place of what the Order says.
  EpochOrder(const Order& order, std::int64_t epoch, std::unique_ptr<const GivenEpoch> given = nullptr);
  // Sample at `position`, 0 .. positions() - 1, whatever rank takes it. Costs a permutation, two when there are
  // buckets.
  std::int64_t sample_at(std::int64_t position) const noexcept;
  // What is drawn for the sample `index` at `position` goes by this: by its position where it may come again.
  std::int64_t draws_of(std::int64_t position, std::int64_t index) const noexcept {
    if (given_ != nullptr) return given_->draws_of(position);
    return order_.repeats() ? position : index;
  }
  std::int64_t positions() const noexcept { return given_ != nullptr ? given_->positions() : order_.positions(); }
  bool is_open() const noexcept { return positions() == kUnknownSize; }  // As a source's size.
  const GivenEpoch* given() const noexcept { return given_.get(); }

 private:
  std::int64_t in_window(std::int64_t position) const noexcept;
  std::int64_t in_shards(std::int64_t place) const noexcept;
  std::int64_t in_bucket(std::int64_t position) const noexcept;

  const Order& order_;
  const std::unique_ptr<const GivenEpoch> given_;
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
  // `last_batch` what is left over is not assigned. `ends`: of a GivenEpoch, which must outlive this, the batches, one
  // rank's alone; null: they are of batch_size. kUnknownSize in `positions`: end_at() follows.
  BatchSampler(std::int64_t positions, const DataOptions& options, LastBatch last_batch, std::int64_t begin,
               const std::vector<std::int64_t>* ends = nullptr) noexcept;

  struct Slice {
    std::int64_t size;     // Places of the batch.
    std::int64_t counted;  // The first of them, which count: positions from `begin` on.
    std::int64_t begin;
    std::int64_t repeated;  // Positions of the others, from here on, modulo the epoch's.
  };
  Slice slice(std::int64_t batch) const noexcept;

  std::int64_t begin() const noexcept { return begin_; }
  std::int64_t positions() const noexcept { return positions_; }
  bool is_open() const noexcept { return positions_ == kUnknownSize; }
  // The end of an open one, not before begin().
  void end_at(std::int64_t positions) noexcept { positions_ = positions; }
  std::int64_t first_batch() const noexcept;
  std::int64_t end_batch() const noexcept;  // One more than the last.
  // Where the step after that of `batch` begins, or the epoch ends.
  std::int64_t position_after(std::int64_t batch) const noexcept;
  std::int64_t position_of(const Slice& slice, std::int64_t place) const noexcept {
    return place < slice.counted ? slice.begin + place : (slice.repeated + place - slice.counted) % positions_;
  }

 private:
  std::int64_t step() const noexcept { return batch_size_ * ranks_; }

  std::int64_t positions_, batch_size_, ranks_, rank_;
  LastBatch last_batch_;
  std::int64_t begin_;
  const std::vector<std::int64_t>* ends_;
};

}  // namespace headrace::detail
