#include "data/loader/detail/slot.h"

#include <limits>
#include <utility>

#include "core/base/fail.h"

namespace headrace::detail {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t aligned(std::size_t size) {
  return (size + kAlignment - 1) / kAlignment * kAlignment;
}

// Images, labels, sample indices and valid of a full batch, each 64-byte aligned.
std::size_t block_bytes(const BatchShape& shape) {
  std::int64_t bytes = 0;
  bool overflows = false;
  auto product = static_cast<std::int64_t>(transform::bytes_of(shape.type));
  for (const std::int64_t factor : {shape.batch_size, shape.channels, shape.height, shape.width}) {
    overflows |= __builtin_mul_overflow(product, factor, &product);
  }
  const std::int64_t numbers = shape.batch_size * (2 * static_cast<std::int64_t>(sizeof(std::int64_t)) + 1);
  overflows |= __builtin_add_overflow(product, numbers + 4 * static_cast<std::int64_t>(kAlignment), &bytes);
  if (overflows) {
    fail(ErrorCode::out_of_memory, "data: a batch of {} x {} x {} x {} values is larger than any memory",
         shape.batch_size, shape.channels, shape.height, shape.width);
  }
  const auto images = static_cast<std::size_t>(product), samples = static_cast<std::size_t>(shape.batch_size);
  return aligned(images) + 2 * aligned(samples * sizeof(std::int64_t)) + aligned(samples);
}

DType dtype_of(PixelType type) {
  return type == PixelType::f32 ? DType::f32 : type == PixelType::bf16 ? DType::bf16 : DType::u8;
}

std::vector<std::int64_t> strides_of(const BatchShape& shape) {
  const std::int64_t sample = shape.sample_values(), plane = shape.height * shape.width;
  if (shape.layout == PixelLayout::nhwc) return {sample, 1, shape.width * shape.channels, shape.channels};
  return {sample, plane, shape.width, 1};
}

std::vector<BatchField> make_fields(const BatchShape& shape) {
  std::vector<BatchField> fields(3);
  fields[0] = {.name = "image",
               .dtype = dtype_of(shape.type),
               .shape = {shape.batch_size, shape.channels, shape.height, shape.width},
               .strides = strides_of(shape),
               .bytes = {}};
  fields[1] = {.name = "labels", .dtype = DType::i64, .shape = {shape.batch_size}, .strides = {1}, .bytes = {}};
  fields[2] = {.name = "valid", .dtype = DType::u8, .shape = {shape.batch_size}, .strides = {1}, .bytes = {}};
  return fields;
}

}  // namespace

SlotPool::SlotPool(const BatchShape& shape, std::int64_t kept, std::int64_t memory_limit)
    : shape_(shape), block_bytes_(block_bytes(shape)), memory_limit_(memory_limit), kept_(kept) {
  check_fit(kept);
  blocks_.emplace(block_bytes_, static_cast<std::size_t>(kept));
  std::vector<std::unique_ptr<Batch::Slot>> all;  // Taken once and put back: a block is allocated when first taken.
  for (std::int64_t i = 0; i < kept; ++i) all.push_back(take(0, 0, shape.batch_size));
  for (auto& slot : all) put_back(std::move(slot));
}

std::int64_t SlotPool::bytes_of(const BatchShape& shape) {
  return static_cast<std::int64_t>(headrace::detail::block_bytes(shape));
}

void SlotPool::check_fit(std::int64_t blocks) const {
  std::int64_t bytes = 0;
  const bool overflows = __builtin_mul_overflow(blocks, static_cast<std::int64_t>(block_bytes_), &bytes);
  if (!overflows && bytes <= memory_limit_) return;
  fail(ErrorCode::out_of_memory,
       "data: {} batches of {} bytes are {} bytes; the memory limit is {} bytes. A smaller batch_size or fewer "
       "prefetch_batches need less",
       blocks, block_bytes_, overflows ? std::string("more than 2^63") : std::to_string(bytes), memory_limit_);
}

BlockPool::Block SlotPool::take_block() {
  if (auto block = blocks_->try_take()) return block;
  const std::size_t allocated = blocks_->allocated();
  if (allocated >= static_cast<std::size_t>(memory_limit_) / block_bytes_) {
    fail(ErrorCode::out_of_memory,
         "data: no room for another batch of {} bytes: {} are out, most of them kept by the caller; the memory limit "
         "is {} bytes",
         block_bytes_, blocks_->out(), memory_limit_);
  }
  blocks_->set_capacity(allocated + 1);
  auto block = blocks_->try_take();
  HEADRACE_CHECK(static_cast<bool>(block), "data: a pool of {} blocks gave none", allocated + 1);
  return block;
}

std::unique_ptr<Batch::Slot> SlotPool::take_idle() {
  if (!idle_.empty()) {
    auto slot = std::move(idle_.back());
    idle_.pop_back();
    return slot;
  }
  idle_.reserve(slots_ + 1);  // Now, so that put_back never allocates.
  auto slot = std::make_unique<Batch::Slot>();
  slot->fields = make_fields(shape_);
  ++slots_;
  return slot;
}

std::unique_ptr<Batch::Slot> SlotPool::take(std::int64_t epoch, std::int64_t index, std::int64_t size) {
  std::lock_guard lock(mutex_);
  BlockPool::Block block = take_block();
  auto slot = take_idle();
  slot->block = std::move(block);
  slot->epoch = epoch;
  slot->index = index;
  slot->size = size;
  slot->claimed = 0;
  slot->finished = 0;
  lay_out(*slot, size);
  return slot;
}

void SlotPool::lay_out(Batch::Slot& slot, std::int64_t size) const {
  const auto count = static_cast<std::size_t>(size), full = static_cast<std::size_t>(shape_.batch_size);
  const auto sample_bytes = static_cast<std::size_t>(shape_.sample_bytes());
  const std::size_t labels_at = aligned(full * sample_bytes);
  const std::size_t indices_at = labels_at + aligned(full * sizeof(std::int64_t));
  const std::size_t valid_at = indices_at + aligned(full * sizeof(std::int64_t));
  std::byte* start = slot.block.bytes().data();
  slot.images = {start, count * sample_bytes};
  slot.labels = {reinterpret_cast<std::int64_t*>(start + labels_at), count};
  slot.sample_indices = {reinterpret_cast<std::int64_t*>(start + indices_at), count};
  slot.valid = {reinterpret_cast<std::uint8_t*>(start + valid_at), count};
  slot.fields[0].shape[0] = size;
  slot.fields[0].bytes = slot.images;
  slot.fields[1].shape[0] = size;
  slot.fields[1].bytes = std::as_writable_bytes(slot.labels);
  slot.fields[2].shape[0] = size;
  slot.fields[2].bytes = std::as_writable_bytes(slot.valid);
}

void SlotPool::put_back(std::unique_ptr<Batch::Slot> slot) noexcept {
  std::lock_guard lock(mutex_);
  slot->block = {};
  idle_.push_back(std::move(slot));
}

std::shared_ptr<Batch::Slot> SlotPool::hand_out(std::unique_ptr<Batch::Slot> slot) {
  return {slot.release(), [pool = shared_from_this()](Batch::Slot* returned) noexcept {
            pool->put_back(std::unique_ptr<Batch::Slot>(returned));
          }};
}

void SlotPool::set_kept(std::int64_t kept) {
  check_fit(kept);
  std::lock_guard lock(mutex_);
  kept_ = kept;
  blocks_->set_capacity(static_cast<std::size_t>(kept));
}

void SlotPool::trim() noexcept {
  std::lock_guard lock(mutex_);
  blocks_->set_capacity(static_cast<std::size_t>(kept_));
}

void SlotPool::give_back() noexcept {
  std::lock_guard lock(mutex_);
  blocks_->set_capacity(0);  // take() raises it as blocks are needed.
}

void SlotPool::close() noexcept {
  std::lock_guard lock(mutex_);
  blocks_.reset();
}

std::int64_t SlotPool::allocated_bytes() const {
  std::lock_guard lock(mutex_);
  return blocks_ ? static_cast<std::int64_t>(blocks_->allocated() * block_bytes_) : 0;  // None: closed.
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
const std::vector<BatchField>& Batch::fields() const {
  return slot_->fields;
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
