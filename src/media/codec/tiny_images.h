// A folder of small JPEG files on disk, for tests and benches of any module: DIR/train/<class>/ and DIR/test/<class>/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/base/fail.h"
#include "core/base/temporary_folder.h"
#include "media/codec/test_images.h"

namespace headrace {

// The label shows in the colour, so that training has something to learn; the rest of an image is noise and a slope.
class TinyImages {
 public:
  struct Shape {
    int classes = 4;  // Up to 26, named "a", "b", ...
    int count = 16;   // Of a class in train; a quarter of it, at least 1, in test.
    int height = 48;  // Of the smallest; others have up to 16 rows and columns more.
    int width = 64;
  };

  explicit TinyImages(const Shape& shape) {
    for (int label = 0; label < shape.classes; ++label) {
      for (int i = 0; i < shape.count; ++i) write("train", label, i, shape);
      for (int i = 0; i < std::max(1, shape.count / 4); ++i) write("test", label, shape.count + i, shape);
    }
  }

  std::string uri() const { return "folder:" + folder_.string(); }
  const std::filesystem::path& folder() const { return folder_; }

  // Different for each label and each number.
  static codec::Bytes jpeg(int label, int number, const Shape& shape, const codec::JpegForm& form = {}) {
    return codec::jpeg_of(image(label, number, shape), form);
  }

  static codec::Image image(int label, int number, const Shape& shape) {
    const int height = shape.height + number * 5 % 17, width = shape.width + number * 7 % 17;
    codec::Image made{height, width, 3, {}};
    made.pixels.reserve(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * 3);
    const int color[] = {label % 3, label / 3 % 3, label / 9 % 3};
    auto noise = static_cast<std::uint32_t>(label * 1000 + number + 1);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        for (const int level : color) {
          noise = noise * 1664525U + 1013904223U;
          made.pixels.push_back(
              static_cast<std::uint8_t>(20 + level * 80 + static_cast<int>(noise >> 27) + 40 * x / width));
        }
      }
    }
    return made;
  }

 private:
  void write(const std::string& split, int label, int number, const Shape& shape) const {
    const auto folder = folder_ / split / std::string(1, static_cast<char>('a' + label));
    std::filesystem::create_directories(folder);
    const codec::Bytes bytes = jpeg(label, number, shape);
    std::ofstream file(folder / fmt::format("{:05d}.jpg", number), std::ios::binary);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (!file.good()) fail(ErrorCode::io, "tiny images: cannot write to {}", folder.string());
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

}  // namespace headrace
