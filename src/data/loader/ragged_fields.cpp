#include "data/loader/detail/ragged_fields.h"

#include <headrace/trace.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "core/base/fail.h"
#include "core/trace/lock_wait.h"

namespace headrace::detail {

namespace {

constexpr SpanName kLockRagged{"lock_ragged_fields", "wait"};  // Workers of one batch, of each other.

}  // namespace

// ---- Memory ----

bool GrowingBlock::grow(std::size_t size, std::size_t kept) {
  // Twice as large, so that many small samples do not copy what is kept for each of them. At first as much as the boxes
  // of a few hundred images take, so that most batches never grow it.
  constexpr std::size_t kFirst = std::size_t{16} << 10;
  if (size <= size_) return true;
  const std::size_t roomy = std::max({size, 2 * size_, kFirst});
  if (kept == 0) release();  // Else both would be held at a time.
  return resize(roomy, kept) || resize(size, kept);
}

bool GrowingBlock::resize(std::size_t size, std::size_t kept) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t whole = (size + kAlignment - 1) / kAlignment * kAlignment;
  if (!bound_.take_bytes(static_cast<std::int64_t>(whole))) return false;
  std::unique_ptr<std::byte, Free> larger;
  try {
    larger.reset(static_cast<std::byte*>(::operator new (whole, std::align_val_t{kAlignment})));
  } catch (const std::bad_alloc&) {
    bound_.free_bytes(static_cast<std::int64_t>(whole));
    return false;
  }
  if (kept > 0) std::memcpy(larger.get(), memory_.get(), kept);
  release();
  memory_ = std::move(larger);
  size_ = whole;
  return true;
}

void GrowingBlock::release() noexcept {
  if (size_ == 0) return;
  memory_.reset();
  bound_.free_bytes(static_cast<std::int64_t>(size_));
  size_ = 0;
}

// ---- Values ----

RaggedFields::RaggedFields(const BatchLayout& layout, MemoryBound& bound)
    : layout_(layout), collected_(bound), pieces_(layout.ragged.size() * static_cast<std::size_t>(layout.batch_size)) {
  for (std::size_t i = 0; i < layout.ragged.size(); ++i) values_.push_back(std::make_unique<GrowingBlock>(bound));
}

std::int64_t* RaggedFields::offsets(const BatchLayout::Ragged& field) const {
  return reinterpret_cast<std::int64_t*>(start_ + field.offsets_at);
}

void RaggedFields::begin(std::byte* start, std::int64_t size) {
  start_ = start;
  size_ = static_cast<std::size_t>(size);
  unsealed_.store(size, std::memory_order_relaxed);
  collected_bytes_.store(0, std::memory_order_relaxed);
  for (const BatchLayout::Ragged& ragged : layout_.ragged) offsets(ragged)[0] = 0;
}

void RaggedFields::set_numbers(std::span<BatchField> fields) const {
  for (const BatchLayout::Ragged& ragged : layout_.ragged) {
    BatchField& field = fields[ragged.field];
    field.offsets = {offsets(ragged), size_ + 1};
    if (ragged.shapes_at != BatchLayout::kNowhere) {
      field.shapes = {reinterpret_cast<std::int64_t*>(start_ + ragged.shapes_at), size_ * ragged.axes};
    }
  }
}

std::int64_t RaggedFields::bytes_of(const Sample& sample) const noexcept {
  std::size_t bytes = 0;
  for (const BatchLayout::Ragged& ragged : layout_.ragged) {
    const Payload& payload = sample[ragged.field];
    if (payload.kind == Payload::Kind::bytes) bytes += payload.bytes.size();
  }
  return static_cast<std::int64_t>(bytes);
}

std::size_t RaggedFields::add(std::size_t first, std::span<const Sample> samples) {
  std::unique_lock lock(mutex_, std::defer_lock);
  lock_traced(lock, kLockRagged);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto bytes = static_cast<std::size_t>(bytes_of(samples[i]));
    const std::size_t end = collected_bytes_.load(std::memory_order_relaxed);
    if (!collected_.grow(end + bytes, end)) return i;
    add(first + i, samples[i]);
  }
  return samples.size();
}

// There is room for it.
void RaggedFields::add(std::size_t place, const Sample& sample) {
  std::size_t end = collected_bytes_.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < layout_.ragged.size(); ++i) {
    const BatchLayout::Ragged& ragged = layout_.ragged[i];
    const Payload& payload = sample[ragged.field];
    const bool is_there = payload.kind == Payload::Kind::bytes;
    const std::size_t bytes = is_there ? payload.bytes.size() : 0;
    pieces_[i * static_cast<std::size_t>(layout_.batch_size) + place] = {end, bytes};
    if (bytes > 0) std::memcpy(collected_.data() + end, payload.bytes.data(), bytes);
    end += bytes;
    std::int64_t count = is_there && ragged.shapes_at == BatchLayout::kNowhere ? payload.extents[0] : 0;
    if (ragged.shapes_at != BatchLayout::kNowhere) {
      auto* extents = reinterpret_cast<std::int64_t*>(start_ + ragged.shapes_at) + place * ragged.axes;
      for (std::size_t axis = 0; axis < ragged.axes; ++axis) extents[axis] = is_there ? payload.extents[axis] : 0;
      count = static_cast<std::int64_t>(bytes / ragged.element_bytes);
    }
    offsets(ragged)[place + 1] = count;
  }
  collected_bytes_.store(end, std::memory_order_relaxed);
}

void RaggedFields::seal(std::span<BatchField> fields) {
  const std::lock_guard lock(mutex_);  // What others added is seen after it.
  for (std::size_t i = 0; i < layout_.ragged.size(); ++i) {
    const BatchLayout::Ragged& ragged = layout_.ragged[i];
    const std::span pieces = std::span{pieces_}.subspan(i * static_cast<std::size_t>(layout_.batch_size), size_);
    std::size_t bytes = 0;
    for (const Piece& piece : pieces) bytes += piece.bytes;
    GrowingBlock& values = *values_[i];
    BatchField& field = fields[ragged.field];
    if (!values.grow(bytes, 0)) {
      fail(ErrorCode::out_of_memory, "data: field {}: no room for {} bytes in one batch; the memory limit leaves less",
           field.name, bytes);
    }
    std::byte* target = values.data();
    for (const Piece& piece : pieces) {
      if (piece.bytes > 0) std::memcpy(target, collected_.data() + piece.at, piece.bytes);
      target += piece.bytes;
    }
    std::int64_t* const ends = offsets(ragged);
    for (std::size_t place = 0; place < size_; ++place) ends[place + 1] += ends[place];
    field.shape[0] = ends[size_];
    field.bytes = {values.data(), bytes};
  }
}

void RaggedFields::end(std::int64_t usual) noexcept {
  constexpr std::size_t kAlwaysKept = std::size_t{1} << 20;
  constexpr std::int64_t kOfUsual = 8;
  const std::size_t kept = std::max(static_cast<std::size_t>(kOfUsual * usual), kAlwaysKept);
  if (collected_.size() > kept) collected_.release();
  for (const auto& values : values_) {
    if (values->size() > kept) values->release();
  }
}

void RaggedFields::release() noexcept {
  collected_.release();
  for (const auto& values : values_) values->release();
}

}  // namespace headrace::detail
