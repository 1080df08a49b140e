// The memory of one batch, and the pool that it comes from and goes back to.
#pragma once

#include <headrace/loader.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/memory/pool.h"
#include "data/loader/detail/batch_layout.h"
#include "data/loader/detail/ragged_fields.h"

namespace headrace {

// A batch in the making, then in the consumer's hands. Its bytes are written by workers that each own other samples;
// everything else belongs to whoever holds the loader's lock until the batch is delivered.
struct Batch::Slot {
  BlockPool::Block block;      // Empty while the slot is idle.
  std::byte* start = nullptr;  // Of the block; BatchLayout tells what lies where.
  std::vector<BatchField> fields;
  std::unique_ptr<detail::RaggedFields> ragged;  // Null: all fields are dense.
  std::span<std::int64_t> sample_indices;
  std::span<std::uint8_t> valid;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
  std::int64_t size = 0;                   // Samples.
  std::int64_t claimed = 0;                // Samples given to workers, from the first on.
  std::int64_t finished = 0;               // Samples written.
  std::atomic<std::int64_t> unsealed = 0;  // Of a batch without ragged fields: samples that are not made yet.
  // Fields of the operation over the batch, while that runs.
  std::vector<std::span<std::byte>> over_batch;
};

namespace detail {

// Gives out slots. It never waits: how many batches are in the making is bounded by the loader's window, and what the
// caller keeps is the caller's to decide. Beyond `kept` blocks it allocates, and frees those after trim(). Values of
// ragged fields are within the limit, too; a slot keeps their memory while it is idle. The block of a batch that was
// handed out may still be read by a device when the batch dies (core/memory/pool.h): it is given out again later.
// Thread-safe. Owners: the loader and every batch that is out, so that a batch may outlive its loader.
class SlotPool final : public std::enable_shared_from_this<SlotPool>, private MemoryBound {
 public:
  // Allocates `kept` blocks. Error{out_of_memory} when they do not fit into `memory_limit` bytes.
  SlotPool(BatchLayout layout, std::int64_t kept, std::int64_t memory_limit);

  // A slot for `size` samples. Error{out_of_memory} when the batches that the caller keeps leave no room for it. Null:
  // `kept` blocks are there, or more would be beyond the limit, and a device still reads one that will be free then.
  std::unique_ptr<Batch::Slot> take(std::int64_t epoch, std::int64_t index, std::int64_t size);
  bool can_take() noexcept;  // Whether take() would not return null.
  void put_back(std::unique_ptr<Batch::Slot> slot) noexcept;
  // Its first slot.size samples are the whole batch. Nobody else uses the slot, and it is not sealed.
  void shrink(Batch::Slot& slot) const;
  // The slot as a handle that puts it back when its last copy dies. Allocates one control block, the only allocation
  // of a batch in the steady state.
  std::shared_ptr<Batch::Slot> hand_out(std::unique_ptr<Batch::Slot> slot);

  // Error{out_of_memory} when they would not fit; nothing changes then.
  void set_kept(std::int64_t kept);
  // Blocks above `kept` are freed, at once or as they come home.
  void trim() noexcept;
  // All memory is freed, at once or as it comes home, until batches are made again.
  void give_back() noexcept;
  // The loader is gone: memory is freed as soon as its batch dies.
  void close() noexcept;

  const BatchLayout& layout() const { return layout_; }
  std::int64_t batch_bytes() const { return static_cast<std::int64_t>(layout_.block_bytes); }
  // What a slot holds for the ragged fields of a usual batch: the largest of late.
  std::int64_t ragged_bytes() const;
  std::int64_t allocated_bytes() const;  // Retired blocks included.
  std::int64_t retired() const;          // Blocks that are never given out again.

 private:
  bool take_bytes(std::int64_t bytes) noexcept override;
  void free_bytes(std::int64_t bytes) noexcept override;
  void check_fit(std::int64_t blocks) const;
  BlockPool::Block take_block();
  std::size_t usable_blocks() const;
  void free_beyond_kept();
  bool waits_for_device() noexcept;
  [[noreturn]] void fail_for_room() const;
  std::unique_ptr<Batch::Slot> take_idle();
  void lay_out(Batch::Slot& slot) const;
  void set_sizes(Batch::Slot& slot) const;
  std::int64_t block_bytes() const;
  bool has_room(std::int64_t bytes) noexcept;
  void release_idle() noexcept;

  const BatchLayout layout_;
  const std::int64_t memory_limit_;
  mutable std::mutex mutex_;         // Guards everything below, but for what is atomic.
  std::optional<BlockPool> blocks_;  // Empty once closed.
  std::int64_t kept_;
  bool given_back_ = false;                        // Since the last slot was taken.
  std::atomic<std::int64_t> ragged_allocated_{0};  // Grows under the lock.
  std::int64_t ragged_usual_ = 0;
  std::vector<std::unique_ptr<Batch::Slot>> idle_;  // Without blocks: names, shapes and strides, allocated once.
  std::size_t slots_ = 0;                           // Made so far; idle_ has room for as many.
};

}  // namespace detail
}  // namespace headrace
