#include "media/codec/detail/huffman.h"

#include <cstdlib>

namespace headrace::codec::detail {
namespace {

// Of a value of AcTable::steps: those that AcTable::pairs hold. Larger ones have codes of more than one bit.
constexpr int kSizeInTable = 9;

int value_of(std::uint32_t step) {
  return static_cast<std::int32_t>(step) >> 16;
}

}  // namespace

bool CodeSearch::make(const HuffmanCodes& codes) noexcept {
  symbols_ = codes.symbols;
  std::uint32_t code = 0, index = 0;
  for (std::size_t length = 1; length <= 16; ++length) {
    offsets_[length] = index - code;
    code += codes.counts[length];
    index += codes.counts[length];
    if (codes.counts[length] > 0 && code >= 1U << length) return false;  // All ones is the code of nothing.
    ends_[length] = code << (16 - length);
    code *= 2;
  }
  return true;
}

bool DcTable::make(const HuffmanCodes& codes) {
  if (codes == made_of) return true;
  made_of = {};
  if (!search.make(codes)) return false;
  for (int i = 0; i < codes.size; ++i) {
    if (codes.symbols[static_cast<std::size_t>(i)] > 15) return false;  // To libjpeg too, whether in use or not.
  }
  for (std::size_t i = 0; i < kTableSize; ++i) {
    const std::uint64_t bits = std::uint64_t{i} << kTableShift;
    const CodeSearch::Found code = search.find(bits);
    const int length = code.length + code.symbol;
    steps[i] = 0;
    if (code.length == 0 || code.symbol > kDcSizeMax || length > kTableBits) continue;
    const int difference = code.symbol == 0 ? 0 : extended(bits << code.length, code.symbol);
    steps[i] = difference * 65'536 + length;
  }
  made_of = codes;
  return true;
}

bool AcTable::make(const HuffmanCodes& codes) {
  if (codes == made_of) return true;
  made_of = {};
  has_leaps = false;
  if (!search.make(codes)) return false;
  for (std::size_t i = 0; i < kTableSize; ++i) {
    const std::uint64_t bits = std::uint64_t{i} << kTableShift;
    const CodeSearch::Found code = search.find(bits);
    const int zeros = code.symbol >> 4, size = code.symbol & 15;
    const auto length = static_cast<std::uint32_t>(code.length), symbol = static_cast<std::uint32_t>(code.symbol);
    steps[i] = 0;
    if (code.length == 0 || code.length > kTableBits) continue;
    if (size > 0 && size <= kSizeInTable && code.length + size <= kTableBits) {
      const int value = extended(bits << code.length, size);
      steps[i] = static_cast<std::uint32_t>(value) << 16 | static_cast<std::uint32_t>(zeros) << 8 |
                 (length + static_cast<std::uint32_t>(size));
    } else if (code.symbol == 0) {
      steps[i] = AcTable::kEndOfBlock | length;
    } else {
      steps[i] = symbol << 8 | length;
    }
  }
  make_pairs();
  made_of = codes;
  return true;
}

void AcTable::make_pairs() {
  constexpr int kSecondMax = 127, kApartMax = 15;
  for (std::size_t i = 0; i < kTableSize; ++i) {
    const std::uint32_t first = steps[i], length = first & kLengthMask, zeros = first >> 8 & 255;
    pairs[i] = 0;
    if (first < kLeastWithValue) {
      if ((first & kEndOfBlock) != 0) pairs[i] = kEndsBlock | length;
      continue;
    }
    pairs[i] = static_cast<std::uint32_t>(value_of(first)) << 22 | zeros << 6 | length;
    const std::uint32_t second = steps[i << length & (kTableSize - 1)], known = kTableBits - length;
    const std::uint32_t second_length = second & kLengthMask, apart = (second >> 8 & 255) + 1;
    if (second_length == 0 || second_length > known) continue;  // Of its bits some are not in the index.
    if ((second & kEndOfBlock) != 0 && second < kLeastWithValue) {
      pairs[i] += kEndsBlock + second_length;
    } else if (second >= kLeastWithValue && std::abs(value_of(second)) <= kSecondMax && apart <= kApartMax) {
      pairs[i] += (static_cast<std::uint32_t>(value_of(second)) & 255) << 14 | apart << 10 | second_length;
    }
  }
}

void AcTable::make_leaps() {
  if (has_leaps) return;
  constexpr int kLengthMax = 28;  // So that 56 bits hold two leaps.
  for (std::size_t i = 0; i < kTableSize; ++i) {
    std::uint64_t bits = std::uint64_t{i} << kTableShift;
    int length = 0;
    std::uint32_t coefficients = 0, end = 0;
    while (length < kTableBits && end == 0) {
      const CodeSearch::Found code = search.find(bits);
      const int size = code.symbol & 15, known = kTableBits - length, taken = code.length + size;
      if (code.length == 0 || code.length > known || size > kAcSizeMax || length + taken > kLengthMax) break;
      if (size == 0 && code.symbol != 0 && code.symbol != 0xF0) break;
      if (code.symbol == 0) {
        end = kEndOfBlock;
      } else {
        coefficients += static_cast<std::uint32_t>(code.symbol >> 4) + 1;
      }
      length += taken;
      bits <<= taken;
    }
    leaps[i] = coefficients << 8 | end | static_cast<std::uint32_t>(length);
  }
  has_leaps = true;
}

}  // namespace headrace::codec::detail
