#include "media/codec/entropy_index.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "core/base/fail.h"
#include "media/codec/detail/baseline_header.h"
#include "media/codec/detail/entropy_decoder.h"

namespace headrace::codec {
namespace {

constexpr std::uint8_t kFormat = 1;
constexpr int kMeanMost = (1 << 14) - 1;
constexpr std::uint64_t kUnitsMost = 65'535 / 8 + 1;  // Of a side.

class Writer {
 public:
  void number(std::uint64_t value) {  // 7 bits a byte, the lowest first.
    for (; value > 127; value >>= 7) bytes_.push_back(static_cast<std::uint8_t>(value | 128));
    bytes_.push_back(static_cast<std::uint8_t>(value));
  }
  void difference(std::int64_t value) {  // 0, -1, 1, -2, ... are 0, 1, 2, 3, ...
    number(static_cast<std::uint64_t>(value) << 1 ^ static_cast<std::uint64_t>(value >> 63));
  }
  std::vector<std::uint8_t> taken() { return std::move(bytes_); }

 private:
  std::vector<std::uint8_t> bytes_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::uint64_t number(std::uint64_t most, const char* what) {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 63; shift += 7) {
      if (bytes_.empty()) fail(ErrorCode::corrupt_data, "codec: an entropy index that ends within {}", what);
      const std::uint8_t byte = bytes_[0];
      bytes_ = bytes_.subspan(1);
      value |= std::uint64_t{byte & 127U} << shift;
      if (byte < 128) {
        if (value <= most) return value;
        break;
      }
    }
    fail(ErrorCode::corrupt_data, "codec: an entropy index with {} beyond {}", what, most);
  }
  int difference(int from, int most, const char* what) {
    const std::uint64_t coded = number(std::uint64_t{4} * static_cast<std::uint64_t>(most) + 3, what);
    const auto change = static_cast<std::int64_t>(coded >> 1) ^ -static_cast<std::int64_t>(coded & 1);
    const std::int64_t value = from + change;
    if (value > most || value < -most) {
      fail(ErrorCode::corrupt_data, "codec: an entropy index with {} {}; wanted at most {}", what, value, most);
    }
    return static_cast<int>(value);
  }
  std::size_t left() const noexcept { return bytes_.size(); }

 private:
  std::span<const std::uint8_t> bytes_;
};

}  // namespace

struct EntropyIndexer::Impl {
  detail::EntropyDecoder decoder;
};

EntropyIndexer::EntropyIndexer() = default;
EntropyIndexer::~EntropyIndexer() = default;
EntropyIndexer::EntropyIndexer(EntropyIndexer&&) noexcept = default;
EntropyIndexer& EntropyIndexer::operator=(EntropyIndexer&&) noexcept = default;

bool EntropyIndexer::make(std::span<const std::uint8_t> jpeg, EntropyIndex& index) {
  const auto header = detail::read_baseline_header(jpeg);
  if (!header || jpeg.size() > std::numeric_limits<std::uint32_t>::max()) return false;
  if (impl_ == nullptr) impl_ = std::make_unique<Impl>();
  detail::EntropyDecoder& decoder = impl_->decoder;
  if (!decoder.begin(jpeg, *header, 1)) return false;
  index.file_size = static_cast<std::uint32_t>(jpeg.size());
  index.components = header->component_count;
  index.unit_rows = header->unit_rows();
  index.units_a_row = header->units_a_row();
  index.positions.clear();
  for (int row = 0; row < index.unit_rows; ++row) {
    for (int unit = 0; unit < index.units_a_row; unit += EntropyIndex::kUnitsApart) {
      index.positions.push_back(decoder.position());
      decoder.skip(std::min(EntropyIndex::kUnitsApart, index.units_a_row - unit));
      if (!decoder.ok()) return false;
    }
  }
  return true;
}

std::vector<std::uint8_t> serialise(const EntropyIndex& index) {
  Writer writer;
  writer.number(kFormat);
  writer.number(index.file_size);
  writer.number(static_cast<std::uint64_t>(index.components));
  writer.number(static_cast<std::uint64_t>(index.unit_rows));
  writer.number(static_cast<std::uint64_t>(index.units_a_row));
  std::uint64_t last = 0;
  EntropyPosition before;
  for (const EntropyPosition& position : index.positions) {
    const std::uint64_t bit = std::uint64_t{position.byte} * 8 + position.bit;
    writer.number(bit - last);
    last = bit;
    for (std::size_t c = 0; c < static_cast<std::size_t>(index.components); ++c) {
      writer.difference(position.means[c] - before.means[c]);
    }
    before = position;
  }
  return writer.taken();
}

void parse_entropy_index(std::span<const std::uint8_t> bytes, EntropyIndex& index) {
  Reader reader(bytes);
  const std::uint64_t format = reader.number(std::numeric_limits<std::uint64_t>::max() / 2, "its format");
  if (format != kFormat) {
    fail(ErrorCode::unsupported, "codec: an entropy index of format {}; wanted {}", format, kFormat);
  }
  index.file_size = static_cast<std::uint32_t>(reader.number(std::numeric_limits<std::uint32_t>::max(), "a file size"));
  index.components = static_cast<int>(reader.number(3, "components"));
  index.unit_rows = static_cast<int>(reader.number(kUnitsMost, "rows"));
  index.units_a_row = static_cast<int>(reader.number(kUnitsMost, "columns"));
  if ((index.components != 1 && index.components != 3) || index.unit_rows == 0 || index.units_a_row == 0) {
    fail(ErrorCode::corrupt_data, "codec: an entropy index of {} components, {} x {} units", index.components,
         index.unit_rows, index.units_a_row);
  }
  const auto count = static_cast<std::size_t>(index.unit_rows) * static_cast<std::size_t>(index.positions_a_row());
  if (reader.left() / (1 + static_cast<std::size_t>(index.components)) < count) {  // Before memory is taken for them.
    fail(ErrorCode::corrupt_data, "codec: an entropy index of {} bytes for {} positions", bytes.size(), count);
  }
  index.positions.clear();
  index.positions.reserve(count);
  std::uint64_t bit = 0;
  EntropyPosition position;
  for (std::size_t i = 0; i < count; ++i) {
    bit += reader.number(std::uint64_t{index.file_size} * 8 - bit, "a position");
    position.byte = static_cast<std::uint32_t>(bit / 8);
    position.bit = static_cast<std::uint8_t>(bit % 8);
    for (std::size_t c = 0; c < static_cast<std::size_t>(index.components); ++c) {
      position.means[c] = static_cast<std::int16_t>(reader.difference(position.means[c], kMeanMost, "a mean"));
    }
    index.positions.push_back(position);
  }
  if (reader.left() > 0) fail(ErrorCode::corrupt_data, "codec: an entropy index with {} bytes more", reader.left());
}

}  // namespace headrace::codec
