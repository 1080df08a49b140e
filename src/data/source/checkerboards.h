// For tests: a source of one's own, through the public header alone, as docs/guides/cpp.md shows it.
#pragma once

#include <headrace/source.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace hr = headrace;

// A checkerboard a sample; the label tells the size of its squares.
class Checkerboards : public hr::Source {
 public:
  std::int64_t size() const override { return 12; }
  const hr::SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return "board " + std::to_string(index); }
  void read(std::int64_t index, hr::Sample& sample) const override {
    const std::int64_t label = index % 4;
    const auto square = static_cast<std::size_t>(label + 1);
    std::vector<std::uint8_t>& pixels = sample.buffer(0);
    pixels.resize(64);
    for (std::size_t i = 0; i < 64; ++i) pixels[i] = (i / 8 / square + i % 8 / square) % 2 == 0 ? 0 : 255;
    sample.image().set_pixels(pixels, 8, 8, 1);
    sample.set_label(label);
  }

 private:
  const hr::SourceInfo info_{.schema = hr::Schema::image_and_labels(8, 8, 1), .num_classes = 4, .fingerprint = 12};
};
