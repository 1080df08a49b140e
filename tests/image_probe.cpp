// Writes what our decoder, resizer and crops do with images; image_parity_test.py compares it with Pillow's and
// torchvision's own.
//   image_probe whole CHANNELS PATH        "HEIGHT WIDTH\n", then the pixels (HWC, uint8)
//   image_probe crop [scaled]              stdin: lines "PATH Y X HEIGHT WIDTH SIZE"; each gives SIZE x SIZE x 3
//                                            bytes; "scaled" as with data.scale_decode
//   image_probe window CROP SIZE RESIZE    stdin: lines "HEIGHT WIDTH INDEX"; each gives a line: begin, size, resized
//                                            and out_begin of both axes, then the first 64 draws; CROP may be
//                                            "evaluation"
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/run_program.h"
#include "data/transform/crop.h"
#include "data/transform/resize.h"
#include "data/transform/shorthand.h"
#include "media/codec/decode.h"

namespace {

using namespace headrace;
using Words = std::vector<std::string>;
using Bytes = std::vector<std::uint8_t>;

Bytes read_image(const std::string& path) {
  const std::string bytes = read_file(path, std::int64_t{1} << 28);
  return {bytes.begin(), bytes.end()};
}

void write(const Bytes& bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), stdout) != bytes.size()) {
    fail(ErrorCode::io, "image_probe: cannot write");
  }
}

std::size_t area(int height, int width) {
  return static_cast<std::size_t>(height) * static_cast<std::size_t>(width);
}

void whole(const Words& words) {
  const Bytes file = read_image(words.at(1));
  codec::Decoder decoder;
  const codec::ImageInfo info = decoder.open(file, std::stoi(words.at(0)));
  Bytes pixels(area(info.height, info.width) * static_cast<std::size_t>(info.channels));
  decoder.decode({0, 0, info.height, info.width}, pixels);
  fmt::print("{} {}\n", info.height, info.width);
  write(pixels);
}

// Decodes and resizes as the Loader does: what of the box the resize needs, and no more.
void crop(const Words& words) {
  codec::Decoder decoder;
  transform::Resizer resizer;
  Bytes pixels;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream fields(line);
    std::string path;
    codec::Box box;
    int size = 0;
    fields >> path >> box.y >> box.x >> box.height >> box.width >> size;
    if (!fields || size < 1) fail(ErrorCode::invalid_argument, "image_probe: line \"{}\"", line);
    transform::ResizeAxis vertical{box.y, box.height, size, 0, size}, horizontal{box.x, box.width, size, 0, size};
    const Bytes file = read_image(path);
    decoder.open(file, 3);
    if (!words.empty() && words[0] == "scaled" && decoder.can_shrink()) {
      vertical.divisor = horizontal.divisor = transform::divisor_for({vertical, horizontal});
      decoder.shrink(vertical.divisor);
    }
    const transform::Stretch rows = transform::needed(vertical), columns = transform::needed(horizontal);
    pixels.resize(area(rows.size, columns.size) * 3);
    decoder.decode({rows.begin, columns.begin, rows.size, columns.size}, pixels);
    Bytes out(area(size, size) * 3);
    resizer.resize(pixels, vertical, horizontal, 3, out);
    write(out);
  }
}

void window(const Words& words) {
  TransformOptions options;
  for (const auto& choice : choices(Crop{})) {
    if (choice.name == words.at(0)) options.crop = choice.value;
  }
  options.size = std::stoll(words.at(1));
  options.resize = std::stoll(words.at(2));
  const transform::CropStage crop = transform::crop_of(options, /*training=*/words.at(0) != "evaluation");
  int height = 0, width = 0;
  for (std::int64_t index = 0; std::cin >> height >> width >> index;) {
    SampleRandom random(1, 0, index), draws(1, 0, index);
    const transform::CropWindow window = transform::choose_crop(crop, height, width, random);
    for (const transform::ResizeAxis& axis : {window.vertical, window.horizontal}) {
      fmt::print("{} {} {} {} ", axis.begin, axis.size, axis.resized, axis.out_begin);
    }
    for (int i = 0; i < 64; ++i) fmt::print("{}{}", draws.next(), i < 63 ? " " : "\n");
  }
}

void run(const Words& words) {
  const std::map<std::string, void (*)(const Words&)> commands{{"whole", whole}, {"crop", crop}, {"window", window}};
  commands.at(words.at(0))(Words(words.begin() + 1, words.end()));
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run, "image_probe");
}
