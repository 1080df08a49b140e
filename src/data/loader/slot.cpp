#include "data/loader/detail/slot.h"

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace::detail {

SlotPool::SlotPool(BatchLayout layout, std::int64_t kept, std::int64_t memory_limit)
    : layout_(std::move(layout)), memory_limit_(memory_limit), kept_(kept) {
  check_fit(kept);
  blocks_.emplace(layout_.block_bytes, static_cast<std::size_t>(kept));
  std::vector<std::unique_ptr<Batch::Slot>> all;  // Taken once and put back: a block is allocated when first taken.
  for (std::int64_t i = 0; i < kept; ++i) all.push_back(take(0, 0, layout_.batch_size));
  for (auto& slot : all) put_back(std::move(slot));
}

// ---- Of ragged fields ----

bool SlotPool::take_bytes(std::int64_t bytes) noexcept {
  std::lock_guard lock(mutex_);
  if (!has_room(bytes)) return false;
  ragged_allocated_ += bytes;
  return true;
}

// `mutex_` may be held: it is where slots give up their memory.
void SlotPool::free_bytes(std::int64_t bytes) noexcept {
  ragged_allocated_ -= bytes;
}

// `mutex_` is held. What idle slots keep for their next batch is given up first.
bool SlotPool::has_room(std::int64_t bytes) noexcept {
  const auto fits = [&] { return bytes <= memory_limit_ - block_bytes() - ragged_allocated_; };
  if (!fits()) release_idle();
  return fits();
}

// `mutex_` is held.
void SlotPool::release_idle() noexcept {
  for (const auto& slot : idle_) {
    if (slot->ragged) slot->ragged->release();
  }
}

std::int64_t SlotPool::ragged_bytes() const {
  constexpr std::int64_t kCopies = 2;  // As they were collected, and in order.
  std::lock_guard lock(mutex_);
  return kCopies * ragged_usual_;
}

// ---- Blocks and slots ----

// `mutex_` is held.
std::int64_t SlotPool::block_bytes() const {
  return blocks_ ? static_cast<std::int64_t>(blocks_->allocated() * layout_.block_bytes) : 0;  // None: closed.
}

void SlotPool::check_fit(std::int64_t blocks) const {
  std::int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(blocks, batch_bytes(), &bytes);
  if (!overflows && bytes <= memory_limit_) return;
  fail(ErrorCode::out_of_memory,
       "data: {} batches of {} bytes are {} bytes; the memory limit is {} bytes. A smaller batch_size or fewer "
       "prefetch_batches need less",
       blocks, batch_bytes(), overflows ? std::string("more than 2^63") : std::to_string(bytes), memory_limit_);
}

// `mutex_` is held.
BlockPool::Block SlotPool::take_block() {
  if (auto block = blocks_->try_take()) return block;
  if (waits_for_device()) return {};
  if (!has_room(batch_bytes())) fail_for_room();
  const std::size_t allocated = blocks_->allocated();
  blocks_->set_capacity(allocated + 1);
  auto block = blocks_->try_take();
  HEADRACE_CHECK(static_cast<bool>(block), "data: a pool of {} blocks gave none", allocated + 1);
  return block;
}

// `mutex_` is held.
void SlotPool::fail_for_room() const {
  std::string lost;
  if (blocks_->retired() > 0) {
    lost = fmt::format(
        ", and {} are not used again: when they were released, a CUDA graph was captured or CUDA reported an error",
        blocks_->retired());
  }
  fail(ErrorCode::out_of_memory,
       "data: no room for another batch of {} bytes: {} are out, most of them kept by the caller{}; the memory limit "
       "is {} bytes",
       batch_bytes(), blocks_->out(), lost, memory_limit_);
}

// `mutex_` is held.
std::size_t SlotPool::usable_blocks() const {
  return blocks_->allocated() - blocks_->retired();
}

// `mutex_` is held. Room for as many blocks as are kept; of retired ones none is allocated in their place here, where
// the limit is not looked at.
void SlotPool::free_beyond_kept() {
  const auto kept = static_cast<std::size_t>(kept_);
  blocks_->set_capacity(std::max(kept, std::min(kept, usable_blocks()) + blocks_->retired()));
}

// `mutex_` is held, and no block is free.
bool SlotPool::waits_for_device() noexcept {
  if (blocks_->being_read() == 0) return false;
  return usable_blocks() >= static_cast<std::size_t>(kept_) || !has_room(batch_bytes());
}

bool SlotPool::can_take() noexcept {
  std::lock_guard lock(mutex_);
  if (!blocks_) return true;  // Closed; nobody takes any more.
  return blocks_->can_take() || !waits_for_device();
}

std::unique_ptr<Batch::Slot> SlotPool::take_idle() {
  if (!idle_.empty()) {
    auto slot = std::move(idle_.back());
    idle_.pop_back();
    return slot;
  }
  idle_.reserve(slots_ + 1);  // Now, so that put_back never allocates.
  auto slot = std::make_unique<Batch::Slot>();
  slot->fields = layout_.batch_fields;
  MemoryBound& bound = *this;
  if (!layout_.ragged.empty()) slot->ragged = std::make_unique<RaggedFields>(layout_, bound);
  ++slots_;
  return slot;
}

std::unique_ptr<Batch::Slot> SlotPool::take(std::int64_t epoch, std::int64_t index, std::int64_t size) {
  std::lock_guard lock(mutex_);
  BlockPool::Block block = take_block();
  if (!block) return nullptr;
  auto slot = take_idle();
  given_back_ = false;
  slot->block = std::move(block);
  slot->epoch = epoch;
  slot->index = index;
  slot->size = size;
  slot->claimed = 0;
  slot->finished = 0;
  lay_out(*slot);
  return slot;
}

void SlotPool::lay_out(Batch::Slot& slot) const {
  slot.start = slot.block.bytes().data();
  slot.unsealed.store(slot.size, std::memory_order_relaxed);
  if (slot.ragged) slot.ragged->begin(slot.start, slot.size);
  set_sizes(slot);
}

void SlotPool::shrink(Batch::Slot& slot) const {
  if (slot.ragged) slot.ragged->shrink(slot.size);
  set_sizes(slot);
}

// Samples lie from the front on, so that nothing moves where a batch has fewer.
void SlotPool::set_sizes(Batch::Slot& slot) const {
  const auto count = static_cast<std::size_t>(slot.size);
  slot.sample_indices = {reinterpret_cast<std::int64_t*>(slot.start + layout_.indices_at), count};
  slot.valid = {reinterpret_cast<std::uint8_t*>(slot.start + layout_.valid_at), count};
  const auto lay = [&](const BatchLayout::Dense& dense) {
    BatchField& field = slot.fields[dense.field];
    field.shape[0] = slot.size;
    field.bytes = {slot.start + dense.at, count * dense.sample_bytes};
  };
  const auto lay_present = [&](const auto& place) {
    if (place.present_at == BatchLayout::kNowhere) return;
    slot.fields[place.field].present = {reinterpret_cast<std::uint8_t*>(slot.start + place.present_at), count};
  };
  if (layout_.image) lay(*layout_.image);
  for (const auto& dense : layout_.dense) {
    lay(dense);
    lay_present(dense);
  }
  for (const auto& ragged : layout_.ragged) lay_present(ragged);
  if (slot.ragged) slot.ragged->set_numbers(slot.fields);
  slot.fields.back().shape[0] = slot.size;
  slot.fields.back().bytes = std::as_writable_bytes(slot.valid);
}

void SlotPool::put_back(std::unique_ptr<Batch::Slot> slot) noexcept {
  constexpr std::int64_t kForgotten = 16;  // Batches after which the largest counts for about a third of what it was.
  std::lock_guard lock(mutex_);
  slot->block = {};
  if (slot->ragged) {
    ragged_usual_ = std::max(slot->ragged->bytes(), ragged_usual_ - ragged_usual_ / kForgotten);
  }
  idle_.push_back(std::move(slot));
  if (given_back_ || !blocks_) return release_idle();
  for (const auto& idle : idle_) {  // One that nobody takes again would keep what its last batch needed.
    if (idle->ragged) idle->ragged->end(ragged_usual_);
  }
}

std::shared_ptr<Batch::Slot> SlotPool::hand_out(std::unique_ptr<Batch::Slot> slot) {
  slot->block.lend();
  return {slot.release(), [pool = shared_from_this()](Batch::Slot* returned) noexcept {
            pool->put_back(std::unique_ptr<Batch::Slot>(returned));
          }};
}

void SlotPool::set_kept(std::int64_t kept) {
  check_fit(kept);
  std::lock_guard lock(mutex_);
  kept_ = kept;
  free_beyond_kept();
}

void SlotPool::trim() noexcept {
  std::lock_guard lock(mutex_);
  free_beyond_kept();
}

void SlotPool::give_back() noexcept {
  std::lock_guard lock(mutex_);
  blocks_->set_capacity(0);  // take() raises it as blocks are needed.
  given_back_ = true;
  release_idle();
}

void SlotPool::close() noexcept {
  std::lock_guard lock(mutex_);
  blocks_.reset();
}

std::int64_t SlotPool::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return block_bytes() + ragged_allocated_;
}

std::int64_t SlotPool::retired() const {
  std::lock_guard lock(mutex_);
  return blocks_ ? static_cast<std::int64_t>(blocks_->retired()) : 0;
}

}  // namespace headrace::detail

namespace headrace {

std::int64_t Batch::size() const {
  return slot_->size;
}
std::int64_t Batch::epoch() const {
  return slot_->epoch;
}
std::int64_t Batch::index() const {
  return slot_->index;
}
std::span<const std::int64_t> Batch::sample_indices() const {
  return slot_->sample_indices;
}
std::span<const std::uint8_t> Batch::valid() const {
  return slot_->valid;
}
const std::vector<BatchField>& Batch::fields() const {
  return slot_->fields;
}

const BatchField& Batch::field(std::size_t position) const {
  HEADRACE_CHECK(position < slot_->fields.size(), "data: field {} of a batch of {}", position, slot_->fields.size());
  return slot_->fields[position];
}

const BatchField& Batch::field(std::string_view name) const {
  std::string known;
  for (const BatchField& field : slot_->fields) {
    if (field.name == name) return field;
    known += (known.empty() ? "" : ", ") + field.name;
  }
  fail(ErrorCode::invalid_argument, "data: a batch has no field '{}'; it has {}", name, known);
}

}  // namespace headrace
