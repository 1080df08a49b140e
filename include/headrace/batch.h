// Host batches: named arrays over a loader's pooled memory.
#pragma once

#include <headrace/field.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

// One field of a batch; `bytes` is 64-byte aligned and writable by whoever holds the Batch. A ragged field's samples
// lie one behind the other along the first axis, without gaps.
struct BatchField {
  std::string name;
  DType dtype;
  Shape shape;                        // The batch's samples first; of a ragged field what all samples have together.
  std::vector<std::int64_t> strides;  // Elements.
  std::span<std::byte> bytes;
  Encoding encoding = Encoding::raw;  // The sample's: of an image the batch holds values, of a text UTF-8.
  // Of a ragged field: sample i has shape[0]'s elements offsets[i] to offsets[i + 1] - 1. Empty: the field is dense.
  std::span<const std::int64_t> offsets{};
  // Of a ragged field that differs in more than its first axis: the axes of each sample. Its shape has one axis then,
  // of which each sample takes its product. Empty: only the first axis differs.
  std::span<const std::int64_t> shapes{};
  // Of an optional field, 1 where the sample has it; else it is zeros, or ragged and empty. Empty: all have it.
  std::span<const std::uint8_t> present{};

  bool is_ragged() const noexcept { return !offsets.empty(); }
};

// A batch on the host: the fields of the source's schema, in its order, and "valid" u8 (N), which is 1 where a sample
// counts. The first image is (N, C, H, W) of transform.dtype, whose strides are transform.layout's; all others are
// (N, ...) as the source gave them, or ragged. Of images and labels these are "image", "labels" i64 (N) and "valid".
// Copies share the memory, which goes back to the loader's pool when the last copy dies, also after the Loader itself
// is gone. A sample that only fills the batch up has valid 0.
class Batch {
 public:
  std::int64_t size() const;  // Samples.
  std::int64_t epoch() const;
  std::int64_t index() const;                            // Position in its epoch, from 0.
  std::span<const std::int64_t> sample_indices() const;  // Into the source, in order.
  std::span<const std::uint8_t> valid() const;
  const std::vector<BatchField>& fields() const;         // "valid" is the last.
  const BatchField& field(std::size_t position) const;   // In the schema.
  const BatchField& field(std::string_view name) const;  // Error{invalid_argument} lists the names there are.

  struct Slot;
  explicit Batch(std::shared_ptr<Slot> slot) : slot_(std::move(slot)) {}

 private:
  std::shared_ptr<Slot> slot_;
};

// A batch that was asked for: a std::future of it that counts for how long its owner is blocked in it, which is what
// statistics and AUTOTUNE take for the consumer's waiting; what it does beside an open request is its own work. Of one
// thread at a time. May outlive its Loader.
class BatchFuture {
 public:
  // `blocked_ns`, if there is one, gets the time.
  explicit BatchFuture(std::future<std::optional<Batch>> batch,
                       std::shared_ptr<std::atomic<std::int64_t>> blocked_ns = nullptr)
      : batch_(std::move(batch)), blocked_ns_(std::move(blocked_ns)) {}

  // As std::future's.
  bool valid() const noexcept { return batch_.valid(); }
  void wait() const;
  std::future_status wait_for(std::chrono::nanoseconds limit) const;
  std::optional<Batch> get();

 private:
  std::future<std::optional<Batch>> batch_;
  std::shared_ptr<std::atomic<std::int64_t>> blocked_ns_;  // Owners: the loader, and its futures.
};

}  // namespace headrace
