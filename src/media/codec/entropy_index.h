// Where in a baseline JPEG the decoder can begin: so that a crop need not be preceded by all the data above and
// beside it.
//
// Every 8th unit (of 8 x 8 to 16 x 16 pixels) of each row of units has its bit in the file and the means before
// it, 4 to 8 bytes when serialised: about 3 % of a photograph's file. The file itself stays as it is. A value
// without threads or files; whoever keeps it beside a file sees to it that it is of that file.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace headrace::codec {

// Where the decoder stands before a unit.
struct EntropyPosition {
  std::uint32_t byte = 0;               // Of the file, the first one that is not all used up.
  std::uint8_t bit = 0;                 // How many of its bits are. 0 to 7.
  std::array<std::int16_t, 3> means{};  // Of the last block of each component, quantised.

  bool operator==(const EntropyPosition&) const = default;
};

struct EntropyIndex {
  static constexpr int kUnitsApart = 8;

  std::uint32_t file_size = 0;
  int components = 0;  // 1 or 3.
  int unit_rows = 0, units_a_row = 0;
  std::vector<EntropyPosition> positions;  // Row by row, of units 0, 8, 16, ... of each.

  int positions_a_row() const noexcept { return (units_a_row + kUnitsApart - 1) / kUnitsApart; }
  // Of the last position at or before that unit of a row.
  const EntropyPosition& before(int unit_row, int unit) const noexcept {
    return positions[static_cast<std::size_t>(unit_row) * static_cast<std::size_t>(positions_a_row()) +
                     static_cast<std::size_t>(unit / kUnitsApart)];
  }
  bool operator==(const EntropyIndex&) const = default;
};

// Makes indices, each by a pass over its file's data that decodes no pixel. Keeps 100 KB of tables from one to the
// next. For one thread at a time.
class EntropyIndexer {
 public:
  EntropyIndexer();
  ~EntropyIndexer();
  EntropyIndexer(EntropyIndexer&&) noexcept;
  EntropyIndexer& operator=(EntropyIndexer&&) noexcept;

  // Into `index`, whose memory is used again. False: not a file that an index is used for, or a damaged one; `index`
  // then holds anything.
  bool make(std::span<const std::uint8_t> jpeg, EntropyIndex& index);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // Null before the first image.
};

std::vector<std::uint8_t> serialise(const EntropyIndex& index);
// Into `index`, whose memory is used again. Throws Error{corrupt_data} when the bytes are no index, and
// Error{unsupported} for another format number. What it gives may still be another file's: Decoder then refuses it, or
// gives a wrong image, and never reads outside the file.
void parse_entropy_index(std::span<const std::uint8_t> bytes, EntropyIndex& index);

}  // namespace headrace::codec
