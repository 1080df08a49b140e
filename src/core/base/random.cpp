#include "core/base/random.h"

#include "core/base/fail.h"

namespace headrace {
namespace {

// The multipliers and key increments of the Philox paper, table 2 and section 2.
constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kPhiloxRounds = 10;
// Narrower networks mix badly: with 2 bits a half the orders of five elements come unequally often (random_test.cpp).
constexpr int kNetworkBitsMin = 8;

std::array<std::uint32_t, 2> key_of(std::uint64_t seed) {
  return {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
}

// The upper half of each product depends on all lower bits of its factor. Both constants are odd and have no pattern:
// 2^64 over the golden ratio, and the multiplier of Steele and Vigna's LXM generators.
std::uint64_t mix(std::uint64_t value) {
  value *= 0x9E3779B97F4A7C15U;
  value ^= value >> 32;
  return (value * 0xD1342543DE82EF95U) >> 32;
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
    : size_(static_cast<std::uint64_t>(size)) {
  HEADRACE_CHECK(size >= 0 && size <= std::int64_t{1} << 62, "a permutation of {} elements", size);
  int bits = kNetworkBitsMin;
  while ((std::uint64_t{1} << bits) < size_) ++bits;
  low_bits_ = (bits + 1) / 2;
  high_bits_ = bits / 2;
  // Apart from SampleRandom's keys, or the order would repeat the numbers that a sample draws.
  const auto key = key_of(~seed);
  const auto place = static_cast<std::uint64_t>(epoch);
  for (std::size_t round = 0; round < kRounds; ++round) {
    const auto words = philox({static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
                               static_cast<std::uint32_t>(round), 0},
                              key);
    round_keys_[round] = std::uint64_t{words[1]} << 32 | words[0];
  }
}

std::int64_t Permutation::operator()(std::int64_t position, std::int64_t stream) const noexcept {
  HEADRACE_CHECK(position >= 0 && static_cast<std::uint64_t>(position) < size_, "position {} of {}", position, size_);
  const std::uint64_t low_mask = (std::uint64_t{1} << low_bits_) - 1, high_mask = (std::uint64_t{1} << high_bits_) - 1;
  const std::uint64_t tweak = static_cast<std::uint64_t>(stream) * 0xBF58476D1CE4E5B9U;
  auto value = static_cast<std::uint64_t>(position);
  do {  // Walks the cycle of the larger network until it is back inside.
    std::uint64_t low = value & low_mask, high = value >> low_bits_;
    for (std::size_t round = 0; round < kRounds; round += 2) {
      low ^= mix((high + round_keys_[round]) ^ tweak) & low_mask;
      high ^= mix((low + round_keys_[round + 1]) ^ tweak) & high_mask;
    }
    value = high << low_bits_ | low;
  } while (value >= size_);
  return static_cast<std::int64_t>(value);
}

}  // namespace headrace
