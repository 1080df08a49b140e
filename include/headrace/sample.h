// One sample as a source gives it.
#pragma once

#include <headrace/payload.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

// A payload for each field of the source's schema, and memory for those that lie nowhere yet. Made once and read into
// again and again: buffers grow to the largest, and nothing is allocated from then on. Of one thread at a time.
class Sample {
 public:
  Sample() : Sample(2) {}  // Of images and labels, as of Schema::image_and_labels().
  explicit Sample(std::size_t fields) : payloads_(fields), buffers_(fields) {}

  // A copy's payloads would point into the original. After a move they point where they did.
  Sample(const Sample&) = delete;
  Sample& operator=(const Sample&) = delete;
  Sample(Sample&&) = default;
  Sample& operator=(Sample&&) = default;
  ~Sample() = default;

  std::size_t size() const noexcept { return payloads_.size(); }
  Payload& operator[](std::size_t field) { return payloads_[field]; }  // Not checked, as below.
  const Payload& operator[](std::size_t field) const { return payloads_[field]; }
  std::span<Payload> payloads() noexcept { return payloads_; }
  std::span<const Payload> payloads() const noexcept { return payloads_; }

  // For the bytes of this field, at its front; one that grows moves those of no other field.
  std::vector<std::uint8_t>& buffer(std::size_t field) { return buffers_[field]; }
  const std::vector<std::uint8_t>& buffer(std::size_t field) const { return buffers_[field]; }

  // Of images and labels.
  Payload& image() { return payloads_[0]; }
  const Payload& image() const { return payloads_[0]; }
  void set_label(std::int64_t label) { payloads_[1].set_number(label); }
  std::int64_t label() const { return payloads_[1].number<std::int64_t>(); }

  // All fields are absent; the memory stays.
  void clear() noexcept {
    for (Payload& payload : payloads_) payload.kind = Payload::Kind::absent;
  }
  void release() noexcept;              // The same, and frees the memory.
  std::int64_t bytes() const noexcept;  // Of the buffers.

 private:
  std::vector<Payload> payloads_;
  std::vector<std::vector<std::uint8_t>> buffers_;
};

}  // namespace headrace
