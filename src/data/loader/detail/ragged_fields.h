// The values of a batch's ragged fields.
#pragma once

#include <headrace/sample.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include "data/loader/detail/batch_layout.h"

namespace headrace::detail {

// Bounds memory of which reading alone tells how much is needed. Thread-safe.
class MemoryBound {
 public:
  virtual bool take_bytes(std::int64_t bytes) noexcept = 0;  // False: nothing was taken, the bound would not hold.
  virtual void free_bytes(std::int64_t bytes) noexcept = 0;

 protected:
  ~MemoryBound() = default;
};

// 64-byte aligned memory that is kept from batch to batch and grows to the largest.
class GrowingBlock {
 public:
  explicit GrowingBlock(MemoryBound& bound) : bound_(bound) {}
  ~GrowingBlock() { release(); }
  GrowingBlock(const GrowingBlock&) = delete;
  GrowingBlock& operator=(const GrowingBlock&) = delete;

  // Makes room for `size` bytes, of which the first `kept` stay. False: the bound leaves no room, and they stay where
  // they are.
  bool grow(std::size_t size, std::size_t kept);
  void release() noexcept;
  std::byte* data() const noexcept { return memory_.get(); }
  std::size_t size() const noexcept { return size_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept { ::operator delete (memory, std::align_val_t{64}); }
  };
  bool resize(std::size_t size, std::size_t kept);

  MemoryBound& bound_;
  std::unique_ptr<std::byte, Free> memory_;
  std::size_t size_ = 0;
};

// How many values a sample has is known when it is read, and chunks of one batch are read by several threads: they
// collect the values in the order in which they come, and whoever made the batch's last samples lays them one behind
// the other in that of the samples. So their bytes depend on the samples alone. Costs two copies, and a lock for a few
// samples together. Between batches its memory is kept.
class RaggedFields {
 public:
  // `layout` and `bound` outlive this.
  RaggedFields(const BatchLayout& layout, MemoryBound& bound);

  // For a batch of `size` samples in the block at `start`, in which the numbers beside the values lie.
  void begin(std::byte* start, std::int64_t size);
  // The batch has the first `size` samples alone, which are made, and nothing completes it any more.
  void shrink(std::int64_t size) noexcept { size_ = static_cast<std::size_t>(size); }
  // Where these numbers lie.
  void set_numbers(std::span<BatchField> fields) const;
  // Those of `samples`, the batch's from `first` on, which have been checked. From any thread, each sample once.
  // Returns how many were taken: fewer where the bound left no room for the next one.
  std::size_t add(std::size_t first, std::span<const Sample> samples);
  // Whether these many samples, which are made, are the last ones. Once for all that are made.
  bool completes(std::int64_t made) noexcept {
    return made > 0 && unsealed_.fetch_sub(made, std::memory_order_acq_rel) == made;
  }
  // After all samples were made. Error{out_of_memory} names the field.
  void seal(std::span<BatchField> fields);
  // Of the values so far. From any thread.
  std::int64_t bytes() const noexcept {
    return static_cast<std::int64_t>(collected_bytes_.load(std::memory_order_relaxed));
  }
  std::int64_t bytes_of(const Sample& sample) const noexcept;
  // The batch is not wanted any more. `usual`: bytes() of a usual one. Memory for far more is freed, or one large
  // sample would stay in every slot that it has been in.
  void end(std::int64_t usual) noexcept;
  void release() noexcept;

 private:
  struct Piece {
    std::size_t at = 0, bytes = 0;  // In collected_.
  };

  std::int64_t* offsets(const BatchLayout::Ragged& field) const;
  void add(std::size_t place, const Sample& sample);

  const BatchLayout& layout_;
  std::byte* start_ = nullptr;
  std::size_t size_ = 0;  // Samples.
  std::atomic<std::int64_t> unsealed_{0};
  std::mutex mutex_;  // Guards the next three until the batch is sealed, but that anybody may read how many bytes.
  GrowingBlock collected_;
  std::atomic<std::size_t> collected_bytes_{0};
  std::vector<Piece> pieces_;                          // Field by field, sample by sample.
  std::vector<std::unique_ptr<GrowingBlock>> values_;  // One a field.
};

}  // namespace headrace::detail
