// Huffman codes of a JPEG (ITU-T T.81, C.2) as tables that give what a decoder wants to know of several bits at once.
#pragma once

#include <array>
#include <cstdint>

#include "media/codec/detail/baseline_header.h"

namespace headrace::codec::detail {

// By the next kTableBits bits, left-aligned in 64.
constexpr int kTableBits = 11;
constexpr int kTableShift = 64 - kTableBits;
constexpr std::size_t kTableSize = std::size_t{1} << kTableBits;

// The largest sizes that 8-bit samples have; larger ones are left to libjpeg. A code and its value then take at most 26
// bits, of DC 27, so that 56 bits hold two of them.
constexpr int kDcSizeMax = 11, kAcSizeMax = 10;

// Any code, one length after the other: for those longer than the tables' index.
class CodeSearch {
 public:
  struct Found {
    int length = 0;  // 0: no such code.
    int symbol = 0;
  };

  // False: the lengths are those of no code.
  bool make(const HuffmanCodes& codes) noexcept;
  Found find(std::uint64_t bits) const noexcept {
    const auto next = static_cast<std::uint32_t>(bits >> 48);
    for (std::size_t length = 1; length <= 16; ++length) {
      if (next >= ends_[length]) continue;
      const std::uint32_t index = (next >> (16 - length)) + offsets_[length];
      return {static_cast<int>(length), symbols_[index & 255U]};
    }
    return {};
  }

 private:
  std::array<std::uint32_t, 17> ends_{};     // The first 16 bits that are behind all codes of a length.
  std::array<std::uint32_t, 17> offsets_{};  // From a code to its symbol's place.
  std::array<std::uint8_t, 256> symbols_{};
};

// `size` bits of value behind a code, left-aligned in `bits` (T.81, F.2.2.1). size: 1 to 15.
inline int extended(std::uint64_t bits, int size) noexcept {
  const int value = static_cast<int>(bits >> (64 - size));
  return (bits >> 63) != 0 ? value : value - (1 << size) + 1;
}

struct DcTable {
  // Lowest 6 bits: length of code and value, 0 when longer than the index. Upper 16 bits: the difference.
  std::array<std::int32_t, kTableSize> steps;
  CodeSearch search;
  HuffmanCodes made_of;

  bool make(const HuffmanCodes& codes);  // False: the lengths are those of no code, or a symbol is none.
};

struct AcTable {
  // Lowest 6 bits: the length. Then either the upper 16 bits are a value, which is never 0, and the next 8 the zeros
  // before it; or they are 0 and the next 8 are the symbol of a code of that length, whose value lies behind the index;
  // or all is 0 for a longer code. The end of a block is marked.
  static constexpr std::uint32_t kLengthMask = 63, kEndOfBlock = 64, kLeastWithValue = 1U << 16;
  std::array<std::uint32_t, kTableSize> steps;

  // Up to two coefficients at once, and the end of the block behind them. All 0 where `steps` has no value and no end.
  //   bits 0 to 3    the length of all
  //   bit 4          kEndsBlock
  //   bits 6 to 9    zeros before the first
  //   bits 10 to 13  from the first to the second; 0: there is no second
  //   bits 14 to 21  the second, signed
  //   bits 22 to 31  the first, signed; 0: the end of the block alone
  static constexpr std::uint32_t kPairLengthMask = 15, kEndsBlock = 16;
  std::array<std::uint32_t, kTableSize> pairs;

  // Several codes at once, for blocks whose values nobody wants. Lowest 6 bits: their length together, 0 when the first
  // code is longer than the index; bits 8 to 15: how many coefficients they are; kEndOfBlock when they end the block.
  std::array<std::uint32_t, kTableSize> leaps;
  bool has_leaps = false;

  CodeSearch search;
  HuffmanCodes made_of;

  bool make(const HuffmanCodes& codes);  // False: the lengths are those of no code.
  void make_leaps();

 private:
  void make_pairs();
};

}  // namespace headrace::codec::detail
