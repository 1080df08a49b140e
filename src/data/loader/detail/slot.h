// The memory of one batch, and the pool that it comes from and goes back to.
#pragma once

#include <headrace/loader.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/memory/pool.h"
#include "data/transform/normalize.h"

namespace headrace {

// A batch in the making, then in the consumer's hands. Its bytes are written by workers that each own other samples;
// everything else belongs to whoever holds the loader's lock until the batch is delivered.
struct Batch::Slot {
  BlockPool::Block block;  // Empty while the slot is idle.
  std::vector<BatchField> fields;
  std::span<std::byte> images;
  std::span<std::int64_t> labels;
  std::span<std::int64_t> sample_indices;
  std::span<std::uint8_t> valid;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
  std::int64_t size = 0;      // Samples.
  std::int64_t claimed = 0;   // Samples given to workers, from the first on.
  std::int64_t finished = 0;  // Samples written.
};

namespace detail {

// What all batches of a loader have alike.
struct BatchShape {
  std::int64_t batch_size;
  std::int64_t channels;
  std::int64_t height;
  std::int64_t width;
  PixelType type;
  PixelLayout layout;

  std::int64_t sample_values() const { return channels * height * width; }
  std::int64_t sample_bytes() const { return sample_values() * static_cast<std::int64_t>(transform::bytes_of(type)); }
};

// Gives out slots. It never waits: how many batches are in the making is bounded by the loader's window, and what the
// caller keeps is the caller's to decide. Beyond `kept` blocks it allocates, and frees those after trim().
// Thread-safe. Owners: the loader and every batch that is out, so that a batch may outlive its loader.
class SlotPool : public std::enable_shared_from_this<SlotPool> {
 public:
  // Allocates `kept` blocks. Error{out_of_memory} when they do not fit into `memory_limit` bytes.
  SlotPool(const BatchShape& shape, std::int64_t kept, std::int64_t memory_limit);

  // A slot for `size` samples. Error{out_of_memory} when the batches that the caller keeps leave no room for it.
  std::unique_ptr<Batch::Slot> take(std::int64_t epoch, std::int64_t index, std::int64_t size);
  void put_back(std::unique_ptr<Batch::Slot> slot) noexcept;
  // The slot as a handle that puts it back when its last copy dies. Allocates one control block, the only allocation
  // of a batch in the steady state.
  std::shared_ptr<Batch::Slot> hand_out(std::unique_ptr<Batch::Slot> slot);

  // Error{out_of_memory} when they would not fit; nothing changes then.
  void set_kept(std::int64_t kept);
  // Blocks above `kept` are freed, at once or as they come home.
  void trim() noexcept;
  // All blocks are freed, at once or as they come home, until batches are made again.
  void give_back() noexcept;
  // The loader is gone: memory is freed as soon as its batch dies.
  void close() noexcept;

  static std::int64_t bytes_of(const BatchShape& shape);  // Of one batch. Error{out_of_memory}: more than 2^63.
  std::int64_t batch_bytes() const { return static_cast<std::int64_t>(block_bytes_); }
  std::int64_t allocated_bytes() const;

 private:
  void check_fit(std::int64_t blocks) const;
  BlockPool::Block take_block();
  std::unique_ptr<Batch::Slot> take_idle();
  void lay_out(Batch::Slot& slot, std::int64_t size) const;

  const BatchShape shape_;
  const std::size_t block_bytes_;
  const std::int64_t memory_limit_;
  mutable std::mutex mutex_;         // Guards everything below.
  std::optional<BlockPool> blocks_;  // Empty once closed.
  std::int64_t kept_;
  std::vector<std::unique_ptr<Batch::Slot>> idle_;  // Without blocks: names, shapes and strides, allocated once.
  std::size_t slots_ = 0;                           // Made so far; idle_ has room for as many.
};

}  // namespace detail
}  // namespace headrace
