// What a JPEG's segments before its pixels say, for the files that BaselineReader decodes itself.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace headrace::codec::detail {

// As a DHT segment has it (ITU-T T.81, B.2.4.2).
struct HuffmanCodes {
  std::array<std::uint8_t, 17> counts{};  // Of codes of each length; the first is 0.
  std::array<std::uint8_t, 256> symbols{};
  int size = 0;  // 0: not in the file.

  bool operator==(const HuffmanCodes&) const = default;
};

struct QuantisationTable {
  std::array<std::uint16_t, 64> factors{};  // In zigzag order.
  bool defined = false;
};

struct BaselineComponent {
  int identifier = 0;
  int h = 1, v = 1;  // Blocks in a minimum coded unit.
  int quantisation = 0, dc = 0, ac = 0;
};

// Grey, or YCbCr whose chroma has one block in a unit and whose luma has 1 or 2 in each direction.
struct BaselineHeader {
  int height = 0, width = 0;
  int component_count = 0;
  std::array<BaselineComponent, 3> components;
  std::array<QuantisationTable, 4> quantisation;
  std::array<HuffmanCodes, 4> dc, ac;
  int restart_interval = 0;  // In units; 0: none.
  std::size_t scan = 0;      // Where the entropy-coded data begins.

  int unit_height() const noexcept { return 8 * components[0].v; }
  int unit_width() const noexcept { return 8 * components[0].h; }
  int unit_rows() const noexcept { return (height + unit_height() - 1) / unit_height(); }
  int units_a_row() const noexcept { return (width + unit_width() - 1) / unit_width(); }
};

// Nothing for every file that is not baseline or extended sequential Huffman of 8 bits in one scan, of these colours,
// and well formed to the last byte of its header. What that is then, and whether it can be decoded, is libjpeg's to
// say.
std::optional<BaselineHeader> read_baseline_header(std::span<const std::uint8_t> bytes);

}  // namespace headrace::codec::detail
