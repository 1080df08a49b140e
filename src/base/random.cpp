#include "base/random.h"

#include <headrace/error.h>

namespace headrace {
namespace {

// The multipliers and key increments of the Philox paper, table 2 and section 2.
constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kPhiloxRounds = 10;
constexpr int kFeistelRounds = 8;
// Narrower halves mix badly: with 2 bits the orders of five elements come unequally often (random_test.cpp).
constexpr int kHalfBitsMin = 4;

std::array<std::uint32_t, 2> key_of(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

SampleRandom::SampleRandom(std::uint64_t seed, std::int64_t epoch, std::int64_t index) noexcept
    : counter_{0, static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(index),
               static_cast<std::uint32_t>(static_cast<std::uint64_t>(index) >> 32)},
      key_(key_of(seed)) {}

std::uint32_t SampleRandom::next() noexcept {
  if (used_ == 4) {
    block_ = philox(counter_, key_);
    ++counter_[0];
    used_ = 0;
  }
  return block_[static_cast<std::size_t>(used_++)];
}

double SampleRandom::uniform() noexcept {
  return next() * 0x1p-32;
}

std::uint32_t SampleRandom::below(std::uint32_t bound) noexcept {
  HEADRACE_CHECK(bound > 0, "a draw below 0");
  std::uint64_t product = std::uint64_t{next()} * bound;
  if (static_cast<std::uint32_t>(product) < bound) {
    // 2^32 mod bound values would come up once too often: draw again for those.
    const std::uint32_t threshold = (0U - bound) % bound;
    while (static_cast<std::uint32_t>(product) < threshold) product = std::uint64_t{next()} * bound;
  }
  return static_cast<std::uint32_t>(product >> 32);
}

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::int64_t epoch) noexcept
    : size_(static_cast<std::uint64_t>(size)),
      half_bits_(kHalfBitsMin),
      // Apart from SampleRandom's keys, or the order would repeat the numbers that a sample draws.
      key_(key_of(~seed)),
      epoch_(static_cast<std::uint32_t>(epoch)) {
  HEADRACE_CHECK(size >= 0 && size <= std::int64_t{1} << 62, "a permutation of {} elements", size);
  while ((std::uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
}

std::int64_t Permutation::operator()(std::int64_t position) const noexcept {
  HEADRACE_CHECK(position >= 0 && static_cast<std::uint64_t>(position) < size_, "position {} of {}", position, size_);
  const std::uint32_t mask = static_cast<std::uint32_t>((std::uint64_t{1} << half_bits_) - 1);
  auto value = static_cast<std::uint64_t>(position);
  do {  // Walks the cycle of the larger network until it is back inside.
    auto left = static_cast<std::uint32_t>(value >> half_bits_);
    auto right = static_cast<std::uint32_t>(value) & mask;
    for (std::uint32_t round = 0; round < kFeistelRounds; ++round) {
      const std::uint32_t mixed = philox({right, epoch_, round, 0}, key_)[0];
      const std::uint32_t next = (left ^ mixed) & mask;
      left = right;
      right = next;
    }
    value = (std::uint64_t{left} << half_bits_) | right;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace headrace
