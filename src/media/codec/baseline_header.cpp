#include "media/codec/detail/baseline_header.h"

#include <algorithm>
#include <string_view>

#include "media/codec/decode.h"

namespace headrace::codec::detail {
namespace {

constexpr int kLibjpegSideMax = 65'500;  // Beyond, the refusal is libjpeg's.

enum Marker : std::uint8_t {
  baseline_frame = 0xC0,
  extended_frame = 0xC1,
  huffman_tables = 0xC4,
  scan_begin = 0xDA,
  quantisation_tables = 0xDB,
  restart_interval = 0xDD,
  first_application = 0xE0,
  adobe_application = 0xEE,
  last_application = 0xEF,
  comment = 0xFE,
};

// The rest of a segment. Reading past its end gives zeros and is remembered.
class Segment {
 public:
  explicit Segment(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  int byte() noexcept {
    if (bytes_.empty()) {
      overrun_ = true;
      return 0;
    }
    const int value = bytes_[0];
    bytes_ = bytes_.subspan(1);
    return value;
  }
  int word() noexcept {
    const int high = byte();
    return high * 256 + byte();
  }
  bool empty() const noexcept { return bytes_.empty(); }
  bool ended_well() const noexcept { return bytes_.empty() && !overrun_; }
  bool begins_with(std::string_view text, std::size_t size) const noexcept {
    return bytes_.size() >= size && std::equal(text.begin(), text.end(), bytes_.begin());
  }
  std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::uint8_t> bytes_;
  bool overrun_ = false;
};

class HeaderReader {
 public:
  explicit HeaderReader(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::optional<BaselineHeader> read() {
    std::size_t at = 2;  // Behind SOI.
    while (at + 4 <= bytes_.size() && bytes_[at] == 0xFF) {
      const std::uint8_t marker = bytes_[at + 1];
      if (marker == 0xFF) {  // Fill.
        ++at;
        continue;
      }
      const std::size_t size = std::size_t{bytes_[at + 2]} * 256 + bytes_[at + 3];
      if (size < 2 || size > bytes_.size() - at - 2) return std::nullopt;
      if (!read_segment(marker, Segment(bytes_.subspan(at + 4, size - 2)))) return std::nullopt;
      at += 2 + size;
      if (marker == scan_begin) {
        header_.scan = at;
        return is_complete() ? std::optional(header_) : std::nullopt;
      }
    }
    return std::nullopt;
  }

 private:
  bool read_segment(std::uint8_t marker, Segment segment) {
    switch (marker) {
      case baseline_frame:
      case extended_frame:
        return read_frame(segment);
      case huffman_tables:
        return read_huffman(segment);
      case scan_begin:
        return read_scan(segment);
      case quantisation_tables:
        return read_quantisation(segment);
      case restart_interval:
        header_.restart_interval = segment.word();
        return segment.ended_well();
      case first_application:
        // 14 bytes of JFIF, the version and density among them; a shorter one is no JFIF to libjpeg.
        jfif_ = jfif_ || segment.begins_with(std::string_view("JFIF\0", 5), 14);
        return true;
      case adobe_application:
        if (segment.begins_with("Adobe", 12)) adobe_transform_ = segment.bytes()[11];
        return true;
      default:
        return (marker > first_application && marker <= last_application) || marker == comment;
    }
  }

  bool read_frame(Segment segment) {
    if (header_.component_count != 0 || segment.byte() != 8) return false;
    header_.height = segment.word();
    header_.width = segment.word();
    header_.component_count = segment.byte();
    if (header_.component_count != 1 && header_.component_count != 3) return false;
    for (int c = 0; c < header_.component_count; ++c) {
      BaselineComponent& component = header_.components[static_cast<std::size_t>(c)];
      component.identifier = segment.byte();
      const int factors = segment.byte();
      component.h = factors >> 4;
      component.v = factors & 15;
      component.quantisation = segment.byte();
      if (component.quantisation > 3 || component.h < 1 || component.h > 4 || component.v < 1 || component.v > 4) {
        return false;
      }
    }
    return segment.ended_well();
  }

  bool read_huffman(Segment segment) {
    while (!segment.empty()) {
      const int target = segment.byte();
      if ((target & 0xEF) > 3) return false;
      HuffmanCodes codes;
      for (std::size_t length = 1; length <= 16; ++length) {
        codes.counts[length] = static_cast<std::uint8_t>(segment.byte());
        codes.size += codes.counts[length];
      }
      if (codes.size == 0 || codes.size > 256) return false;
      for (int i = 0; i < codes.size; ++i) {
        codes.symbols[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(segment.byte());
      }
      auto& tables = (target & 0x10) != 0 ? header_.ac : header_.dc;
      tables[static_cast<std::size_t>(target & 3)] = codes;
    }
    return segment.ended_well();
  }

  bool read_quantisation(Segment segment) {
    while (!segment.empty()) {
      const int target = segment.byte();
      if ((target & 15) > 3 || target >> 4 > 1) return false;
      QuantisationTable& table = header_.quantisation[static_cast<std::size_t>(target & 15)];
      for (std::uint16_t& factor : table.factors) {
        factor = static_cast<std::uint16_t>(target >> 4 != 0 ? segment.word() : segment.byte());
      }
      table.defined = true;
    }
    return segment.ended_well();
  }

  // All components in the order of the frame.
  bool read_scan(Segment segment) {
    if (header_.component_count == 0 || segment.byte() != header_.component_count) return false;
    for (int c = 0; c < header_.component_count; ++c) {
      BaselineComponent& component = header_.components[static_cast<std::size_t>(c)];
      if (segment.byte() != component.identifier) return false;
      const int tables = segment.byte();
      component.dc = tables >> 4;
      component.ac = tables & 15;
      if (component.dc > 3 || component.ac > 3) return false;
    }
    const bool whole_band = segment.byte() == 0 && segment.byte() == 63 && segment.byte() == 0;
    return whole_band && segment.ended_well();
  }

  // Whether libjpeg takes three components for YCbCr.
  bool is_luma_and_chroma() const noexcept {
    if (jfif_) return true;
    if (adobe_transform_ >= 0) return adobe_transform_ == 1;
    for (int c = 0; c < 3; ++c) {
      if (header_.components[static_cast<std::size_t>(c)].identifier != c + 1) return false;
    }
    return true;
  }

  bool is_complete() {
    const std::int64_t pixels = std::int64_t{header_.height} * header_.width;
    if (pixels == 0 || pixels > kPixelsMax || std::max(header_.height, header_.width) > kLibjpegSideMax) return false;
    auto& components = header_.components;
    if (header_.component_count == 1) {
      components[0].h = components[0].v = 1;  // A scan of one component has one block a unit, whatever its factors.
    } else {
      if (!is_luma_and_chroma() || components[0].h > 2 || components[0].v > 2) return false;
      for (std::size_t c = 1; c < 3; ++c) {
        if (components[c].h != 1 || components[c].v != 1) return false;
      }
      // Of so few columns libjpeg interpolates none.
      if (components[0].h == 2 && header_.width <= 4) return false;
    }
    for (int c = 0; c < header_.component_count; ++c) {
      const BaselineComponent& component = components[static_cast<std::size_t>(c)];
      if (!header_.quantisation[static_cast<std::size_t>(component.quantisation)].defined ||
          header_.dc[static_cast<std::size_t>(component.dc)].size == 0 ||
          header_.ac[static_cast<std::size_t>(component.ac)].size == 0) {
        return false;
      }
    }
    return true;
  }

  std::span<const std::uint8_t> bytes_;
  BaselineHeader header_;
  bool jfif_ = false;
  int adobe_transform_ = -1;
};

}  // namespace

std::optional<BaselineHeader> read_baseline_header(std::span<const std::uint8_t> bytes) {
  return HeaderReader(bytes).read();
}

}  // namespace headrace::codec::detail
