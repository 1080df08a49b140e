#include "media/codec/detail/entropy_decoder.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace headrace::codec::detail {
namespace {

constexpr std::array<std::uint8_t, 64> kZigzag{0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                               12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                               35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                               58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

// 16-bit sums of the transform hold coefficients below. Images of 8 bits have less than 1100.
constexpr std::uint32_t kExtreme = 1U << 12;
// An image's means have less than 2^11 steps of quantisation.
constexpr int kMeanMax = (1 << 14) - 1;
// The first coefficient before which no pair reaches the block's end with its first: 15 zeros and one more.
constexpr std::size_t kPairsMax = 63 - 16;
// Of a file that ends: more than any number of valid bits.
constexpr std::int64_t kNoMore = std::int64_t{1} << 40;

std::uint64_t big_endian_64(const std::uint8_t* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return std::endian::native == std::endian::little ? __builtin_bswap64(value) : value;
}

// Whether one of the eight bytes is 0xFF.
bool has_ones_byte(std::uint64_t value) {
  constexpr std::uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;
  return ((~value - kOnes) & value & kHighs) != 0;
}

// At least the magnitude of `value` less one, and with as many bits.
std::uint32_t bits_of(int value) {
  return static_cast<std::uint32_t>(value ^ (value >> 31));
}

}  // namespace

// Up to the next marker, behind which there are zeros.
EntropyDecoder::Source EntropyDecoder::refilled_slowly(Source source) {
  while (source.count < 56) {
    std::uint64_t byte = 0;
    if (source.end - source.at < 2) {
      source.missing = kNoMore;  // libjpeg reads ahead and complains, even where nothing of it is needed.
    } else if (source.at[0] != 0xFF) {
      byte = *source.at++;
    } else if (source.at[1] == 0) {
      byte = 0xFF;
      source.at += 2;
    } else {
      source.missing += 8;
    }
    source.bits |= byte << (56 - source.count);
    source.count += 8;
  }
  return source;
}

// To at least 56 bits.
[[gnu::always_inline]] inline EntropyDecoder::Source EntropyDecoder::refilled(Source source) {
  if (source.end - source.at >= 8) [[likely]] {
    const std::uint64_t next = big_endian_64(source.at);
    if (!has_ones_byte(next)) [[likely]] {
      source.bits |= next >> source.count;
      source.at += (63 - source.count) >> 3;
      source.count |= 56;
      return source;
    }
  }
  return source.count < 56 ? refilled_slowly(source) : source;
}

[[gnu::always_inline]] inline int EntropyDecoder::read_difference(Source& source, const DcTable& table, bool& failed) {
  const std::int32_t step = table.steps[source.bits >> kTableShift];
  if (const int length = step & 63; length != 0) [[likely]] {
    source.bits <<= length;
    source.count -= length;
    return step >> 16;
  }
  const CodeSearch::Found code = table.search.find(source.bits);
  if (code.length == 0 || code.symbol > kDcSizeMax) {
    failed = true;
    return 0;
  }
  source.bits <<= code.length;
  const int difference = code.symbol == 0 ? 0 : extended(source.bits, code.symbol);
  source.bits <<= code.symbol;
  source.count -= code.length + code.symbol;
  return difference;
}

struct EntropyDecoder::Coefficient {
  int zeros;  // Before it. kEnd: the block has no more; kBad: neither.
  int value;
};

// A code whose value the table does not have: the end of a block, 16 zeros, many bits.
[[gnu::always_inline]] inline EntropyDecoder::Coefficient EntropyDecoder::read_rest(Source& source,
                                                                                    const AcTable& table,
                                                                                    std::uint32_t step) {
  int length = static_cast<int>(step & AcTable::kLengthMask), symbol = static_cast<int>(step >> 8);
  if (length == 0) {
    const CodeSearch::Found code = table.search.find(source.bits);
    length = code.length;
    symbol = code.symbol;
    if (length == 0) return {kBad, 0};
  }
  source.bits <<= length;
  source.count -= length;
  const int size = symbol & 15;
  if (size == 0) return symbol == 0 ? Coefficient{kEnd, 0} : symbol == 0xF0 ? Coefficient{15, 0} : Coefficient{kBad, 0};
  if (size > kAcSizeMax) return {kBad, 0};
  const int value = extended(source.bits, size);
  source.bits <<= size;
  source.count -= size;
  return {symbol >> 4, value};
}

[[gnu::always_inline]] inline EntropyDecoder::Block EntropyDecoder::read_block(Source& source, const AcTable& table,
                                                                               const Place& place,
                                                                               std::int16_t* coefficients) {
  std::uint32_t extremes = 0;
  std::size_t k = 1;
  const auto put = [&](std::size_t at, int value) __attribute__((always_inline)) {
    const int scaled = value * place.factors[at];
    extremes |= bits_of(scaled);
    coefficients[place.positions[at]] = static_cast<std::int16_t>(scaled);
  };
  // Two at a time, as long as the first cannot be the block's last. No branch asks whether there is a second: if not, a
  // 0 goes to a place that is not yet filled.
  while (k <= kPairsMax) {
    source = refilled(source);
    for (int thrice = 0; thrice < 3 && k <= kPairsMax; ++thrice) {  // 56 bits hold two pairs and any coefficient.
      const std::uint32_t pair = table.pairs[source.bits >> kTableShift];
      if (pair != 0) [[likely]] {
        source.bits <<= pair & AcTable::kPairLengthMask;
        source.count -= pair & AcTable::kPairLengthMask;
        const std::size_t first = k + (pair >> 6 & 15), second = first + (pair >> 10 & 15);
        put(second, static_cast<std::int32_t>(pair << 10) >> 24);
        put(first, static_cast<std::int32_t>(pair) >> 22);
        if ((pair & AcTable::kEndsBlock) != 0) return {extremes, k > 1 || pair >> 22 != 0, false};
        k = second + 1;
        continue;
      }
      const Coefficient next = read_rest(source, table, table.steps[source.bits >> kTableShift]);
      if (next.zeros < 0) return {extremes, k > 1, next.zeros == kBad};
      k += static_cast<std::size_t>(next.zeros);
      put(k++, next.value);
      break;
    }
  }
  while (k <= 63) {
    source = refilled(source);
    for (int twice = 0; twice < 2; ++twice) {  // 56 bits hold two.
      const std::uint32_t step = table.steps[source.bits >> kTableShift];
      int value;
      if (step >= AcTable::kLeastWithValue) [[likely]] {
        source.bits <<= step & AcTable::kLengthMask;
        source.count -= step & AcTable::kLengthMask;
        k += step >> 8 & 255;
        value = static_cast<std::int32_t>(step) >> 16;
      } else if ((step & AcTable::kEndOfBlock) != 0) {
        source.bits <<= step & AcTable::kLengthMask;
        source.count -= step & AcTable::kLengthMask;
        return {extremes, k > 1, false};
      } else {
        const Coefficient next = read_rest(source, table, step);
        if (next.zeros < 0) return {extremes, k > 1, next.zeros == kBad};
        k += static_cast<std::size_t>(next.zeros);
        value = next.value;
      }
      put(k, value);
      if (++k > 63) break;
    }
  }
  return {extremes, true, k > 64};
}

// True: it is a block.
[[gnu::always_inline]] inline bool EntropyDecoder::skip_block(Source& source, const AcTable& table) {
  std::uint32_t k = 1;
  while (k <= 63) {
    source = refilled(source);
    for (int twice = 0; twice < 2 && k <= 63; ++twice) {
      const std::uint32_t leap = table.leaps[source.bits >> kTableShift], coefficients = leap >> 8;
      // A block that is full has no end in the data: what follows belongs to the next one.
      if ((leap & AcTable::kLengthMask) != 0 && k + coefficients <= 63) [[likely]] {
        source.bits <<= leap & AcTable::kLengthMask;
        source.count -= leap & AcTable::kLengthMask;
        k += coefficients;
        if ((leap & AcTable::kEndOfBlock) != 0) return true;
        continue;
      }
      const std::uint32_t step = table.steps[source.bits >> kTableShift];
      if (step >= AcTable::kLeastWithValue) {
        source.bits <<= step & AcTable::kLengthMask;
        source.count -= step & AcTable::kLengthMask;
        k += (step >> 8 & 255) + 1;
      } else {
        const Coefficient next = read_rest(source, table, step);
        if (next.zeros < 0) return next.zeros == kEnd;
        k += static_cast<std::uint32_t>(next.zeros) + 1;
      }
    }
  }
  return k == 64;
}

bool EntropyDecoder::begin(std::span<const std::uint8_t> bytes, const BaselineHeader& header, int together) {
  header_ = &header;
  bytes_ = bytes;
  together_ = together;
  for (std::size_t c = 0; c < static_cast<std::size_t>(header.component_count); ++c) {
    const BaselineComponent& component = header.components[c];
    const auto dc = static_cast<std::size_t>(component.dc), ac = static_cast<std::size_t>(component.ac);
    if (!dc_[dc].make(header.dc[dc]) || !ac_[ac].make(header.ac[ac])) return false;
    const auto& factors = header.quantisation[static_cast<std::size_t>(component.quantisation)].factors;
    std::copy(factors.begin(), factors.end(), places_[c].factors.begin());
    for (std::size_t k = 0; k < kZigzag.size(); ++k) {
      places_[c].positions[k] = static_cast<std::uint16_t>(kZigzag[k] / 8 * 8 * together + kZigzag[k] % 8);
    }
  }
  failed_ = false;
  move_to({static_cast<std::uint32_t>(header.scan), 0, {}}, 0);
  return true;
}

// Over the marker before an interval of units. Anything else between the data of two intervals is left to libjpeg.
bool EntropyDecoder::restart() {
  const std::int64_t left = source_.count - source_.missing;
  const std::int64_t interval = unit_ / header_->restart_interval;
  if (left < 0 || left > 7 || source_.end - source_.at < 2 || source_.at[0] != 0xFF ||
      source_.at[1] != 0xD0 + (interval + 7) % 8) {
    return false;
  }
  source_ = {.at = source_.at + 2, .end = source_.end};
  means_ = {};
  until_restart_ = header_->restart_interval;
  return true;
}

// Calls unit(source, means) `count` times. They are copies that live in registers.
template <class Unit>
void EntropyDecoder::for_units(int count, Unit unit) {
  while (count > 0 && !failed_) {
    if (until_restart_ == 0 && !restart()) {
      failed_ = true;
      return;
    }
    const int now = static_cast<int>(std::min<std::int64_t>(count, until_restart_));
    Source source = source_;
    std::array<int, 3> means = means_;
    bool good = true;
    for (int i = 0; i < now; ++i) good = unit(source, means) && good;
    source_ = source;
    means_ = means;
    for (const int mean : means) good = good && std::abs(mean) <= kMeanMax;
    failed_ = !good;
    count -= now;
    unit_ += now;
    until_restart_ -= now;
  }
}

void EntropyDecoder::make_leaps() {
  for (int c = 0; c < header_->component_count; ++c) {
    ac_[static_cast<std::size_t>(header_->components[static_cast<std::size_t>(c)].ac)].make_leaps();
  }
}

void EntropyDecoder::decode(int count, const std::array<std::array<BlockRow, 2>, 3>& rows) {
  make_leaps();  // Rows of blocks may be unwanted.
  if (header_->component_count == 1) {
    decode_units<1>(count, rows);
  } else {
    decode_units<3>(count, rows);
  }
}

template <std::size_t kComponents>
void EntropyDecoder::decode_units(int count, const std::array<std::array<BlockRow, 2>, 3>& rows) {
  int column = 0;  // Of luma: units have h of its blocks in a row and one of each chroma.
  int chroma_column = 0;
  const int shift = std::countr_zero(static_cast<unsigned>(together_)), h = header_->components[0].h,
            v = header_->components[0].v;
  for_units(
      count, [&](Source & source, std::array<int, 3> & means) __attribute__((always_inline)) {
        std::uint32_t extremes = 0;
        bool failed = false;
        const auto block = [&](std::size_t c, const BlockRow& row, int at) __attribute__((always_inline)) {
          const BaselineComponent& component = header_->components[c];
          const AcTable& ac = ac_[static_cast<std::size_t>(component.ac)];
          source = refilled(source);
          means[c] += read_difference(source, dc_[static_cast<std::size_t>(component.dc)], failed);
          if (row.coefficients == nullptr) {
            failed = !skip_block(source, ac) || failed;
            return;
          }
          const int group = at >> shift;
          std::int16_t* coefficients = row.coefficients + (group << shift) * 64 + (at - (group << shift)) * 8;
          const int mean = static_cast<int>(static_cast<std::uint32_t>(means[c]) * places_[c].factors[0]);
          const Block read = read_block(source, ac, places_[c], coefficients);
          coefficients[0] = static_cast<std::int16_t>(mean);
          row.varied[group] = static_cast<std::uint8_t>(row.varied[group] | static_cast<std::uint8_t>(read.varied));
          extremes |= read.extremes | bits_of(mean) | bits_of(means[c]) >> 2;
          failed = failed || read.failed;
        };
        for (int y = 0; y < v; ++y) {
          for (int x = 0; x < h; ++x) block(0, rows[0][static_cast<std::size_t>(y)], column + x);
        }
        column += h;
        for (std::size_t c = 1; c < kComponents; ++c) block(c, rows[c][0], chroma_column);
        ++chroma_column;
        return !failed && extremes < kExtreme;
      });
}

void EntropyDecoder::skip(int count) {
  if (count <= 0) return;
  make_leaps();
  const int luma_blocks = header_->components[0].h * header_->components[0].v;
  for_units(
      count, [&](Source & source, std::array<int, 3> & means) __attribute__((always_inline)) {
        bool failed = false;
        for (std::size_t c = 0; c < static_cast<std::size_t>(header_->component_count); ++c) {
          const BaselineComponent& component = header_->components[c];
          for (int i = c == 0 ? luma_blocks : 1; i > 0; --i) {
            source = refilled(source);
            means[c] += read_difference(source, dc_[static_cast<std::size_t>(component.dc)], failed);
            failed = !skip_block(source, ac_[static_cast<std::size_t>(component.ac)]) || failed;
          }
        }
        return !failed;
      });
}

// Bytes are put back until less than one is left of those not used.
EntropyPosition EntropyDecoder::position() const noexcept {
  const std::uint8_t* at = source_.at;
  std::int64_t left = source_.count - source_.missing;
  for (; left > 0; left -= 8) {
    --at;
    if (at[0] == 0 && at[-1] == 0xFF) --at;  // In this data a byte of ones has a 0 behind it.
  }
  EntropyPosition position{static_cast<std::uint32_t>(at - bytes_.data()), static_cast<std::uint8_t>(-left), {}};
  for (std::size_t c = 0; c < means_.size(); ++c) position.means[c] = static_cast<std::int16_t>(means_[c]);
  return position;
}

void EntropyDecoder::move_to(const EntropyPosition& position, std::int64_t unit) {
  const std::size_t byte = std::min<std::size_t>(position.byte, bytes_.size());
  source_ = refilled({.at = bytes_.data() + byte, .end = bytes_.data() + bytes_.size()});
  source_.bits <<= position.bit & 7;
  source_.count -= position.bit & 7;
  for (std::size_t c = 0; c < means_.size(); ++c) means_[c] = position.means[c];
  unit_ = unit;
  const int interval = header_->restart_interval;
  until_restart_ = std::numeric_limits<std::int64_t>::max();
  if (interval > 0) until_restart_ = unit == 0 ? interval : (interval - unit % interval) % interval;
}

}  // namespace headrace::codec::detail
