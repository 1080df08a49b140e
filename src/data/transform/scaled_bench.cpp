// Large photographs decoded as they are and smaller (data.scale_decode), and resized to 224 as training and validation
// do: CPU time of an image, the share of them that is decoded smaller, and what it costs in fidelity. The photographs
// are cut from wallpapers, as `make setup JOB=photos` does, at half of their size where they have it, and stored as
// 4:2:0.
//
//   scaled_bench [ROUNDS [FOLDER...]]    FOLDER: searched for JPEG and PNG files of 4 megapixels and more; without:
//                                        Debian's wallpapers
//
// All arms of a round run in turn on one thread. Times are medians of the rounds, with the lowest and the highest.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/run_program.h"
#include "data/transform/crop.h"
#include "data/transform/resize.h"
#include "data/transform/shorthand.h"
#include "media/codec/decode.h"
#include "media/codec/test_images.h"

namespace headrace::transform {
namespace {

using namespace codec;

namespace fs = std::filesystem;

constexpr double kMegapixels[] = {0.5, 0.8, 2, 4};
constexpr std::size_t kImages = 16;
constexpr int kCrops = 4;  // Of an image, in training.

struct Photograph {
  Bytes file;
  int height, width;
};

std::size_t area(const Box& box) {
  return static_cast<std::size_t>(box.height) * static_cast<std::size_t>(box.width) * 3;
}

Bytes read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return Bytes{std::istreambuf_iterator<char>(stream), {}};
}

// The middle of a wallpaper, 4 : 3. Nothing: it is too small, or no image.
std::vector<Photograph> cut(const fs::path& path) {
  const Bytes file = read(path);
  Decoder decoder;
  Resizer resizer;
  std::vector<Photograph> cuts;
  try {
    const ImageInfo info = decoder.open(file, 3);
    for (const double megapixels : kMegapixels) {
      const int height = static_cast<int>(std::sqrt(megapixels * 1e6 * 3 / 4)), width = height * 4 / 3;
      if (info.height < height || info.width < width) return {};
      const int zoom = info.height >= 2 * height && info.width >= 2 * width ? 2 : 1;
      const Box box{(info.height - zoom * height) / 2, (info.width - zoom * width) / 2, zoom * height, zoom * width};
      Bytes pixels(area(box));
      decoder.decode(box, pixels);
      Image image{height, width, 3, Bytes(area({0, 0, height, width}))};
      resizer.resize(pixels, {0, box.height, height, 0, height}, {0, box.width, width, 0, width}, 3, image.pixels);
      cuts.push_back({jpeg_of(image, {.quality = 87}), height, width});
    }
  } catch (const Error&) {  // A format that we do not read.
    return {};
  }
  return cuts;
}

// Of each size as many as there are wallpapers that are large enough.
std::vector<std::vector<Photograph>> photographs(const std::vector<std::string>& folders) {
  std::vector<fs::path> paths;
  for (const std::string& folder : folders) {
    std::error_code reason;
    for (const auto& entry : fs::recursive_directory_iterator(folder, reason)) {
      const std::string ending = entry.path().extension();
      if (entry.is_regular_file() && !entry.is_symlink() && (ending == ".jpg" || ending == ".png")) {
        paths.push_back(entry.path());
      }
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::vector<Photograph>> of_size(std::size(kMegapixels));
  for (std::size_t i = 0; i < paths.size() && of_size[0].size() < kImages; ++i) {
    std::vector<Photograph> cuts = cut(paths[i]);
    for (std::size_t size = 0; size < cuts.size(); ++size) of_size[size].push_back(std::move(cuts[size]));
  }
  return of_size;
}

// Decodes and resizes all crops of all images; gives what the batches would get.
class Arm {
 public:
  Arm(const std::vector<Photograph>& photographs, bool training, bool scaled) : scaled_(scaled) {
    TransformOptions options;
    options.size = 224;
    options.resize = 256;
    options.crop = Crop::random_resized;
    const CropStage crop = crop_of(options, training);
    for (const Photograph& photograph : photographs) {
      for (int i = 0; i < (training ? kCrops : 1); ++i) {
        SampleRandom random{1, 0, static_cast<std::int64_t>(crops_.size())};
        crops_.push_back({&photograph, choose_crop(crop, photograph.height, photograph.width, random)});
      }
    }
    outputs_.resize(crops_.size(), Bytes(area({0, 0, 224, 224})));
  }

  void run() {
    const std::int64_t begin_ns = process_cpu_ns();
    shrunk_ = 0;
    for (std::size_t i = 0; i < crops_.size(); ++i) {
      auto [photograph, window] = crops_[i];
      decoder_.open(photograph->file, 3);
      if (const int divisor = divisor_for(window); scaled_ && divisor > 1) {
        decoder_.shrink(divisor);
        window.vertical.divisor = window.horizontal.divisor = divisor;
        ++shrunk_;
      }
      const Stretch rows = needed(window.vertical), columns = needed(window.horizontal);
      const Box box{rows.begin, columns.begin, rows.size, columns.size};
      if (pixels_.size() < area(box)) pixels_.resize(area(box));
      const auto part = std::span{pixels_}.first(area(box));
      decoder_.decode(box, part);
      resizer_.resize(part, window.vertical, window.horizontal, 3, outputs_[i]);
    }
    cpu_ms.push_back(static_cast<double>(process_cpu_ns() - begin_ns) * 1e-6 / static_cast<double>(crops_.size()));
  }

  double shrunk_share() const { return static_cast<double>(shrunk_) / static_cast<double>(crops_.size()); }
  // Against another arm of the same crops, of those that differ; sorted.
  std::vector<double> decibels(const Arm& other) const {
    std::vector<double> all;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      double squares = 0;
      for (std::size_t j = 0; j < outputs_[i].size(); ++j)
        squares += std::pow(outputs_[i][j] - other.outputs_[i][j], 2);
      if (squares > 0) all.push_back(10 * std::log10(255.0 * 255 * static_cast<double>(outputs_[i].size()) / squares));
    }
    std::sort(all.begin(), all.end());
    return all;
  }

  std::vector<double> cpu_ms;  // A crop; one value a round.

 private:
  const bool scaled_;
  std::vector<std::pair<const Photograph*, CropWindow>> crops_;
  std::vector<Bytes> outputs_;
  std::size_t shrunk_ = 0;
  Decoder decoder_;
  Resizer resizer_;
  Bytes pixels_;
};

std::string spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return fmt::format("{:6.3f} [{:.3f}, {:.3f}]", values[values.size() / 2], values.front(), values.back());
}

void compare(double megapixels, const std::vector<Photograph>& photographs, std::int64_t rounds) {
  for (const bool training : {true, false}) {
    Arm plain{photographs, training, false}, scaled{photographs, training, true};
    for (std::int64_t round = 0; round <= rounds; ++round) {
      plain.run();
      scaled.run();
      if (round == 0) plain.cpu_ms.clear(), scaled.cpu_ms.clear();
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < plain.cpu_ms.size(); ++i) ratios.push_back(scaled.cpu_ms[i] / plain.cpu_ms[i]);
    const std::vector<double> decibels = scaled.decibels(plain);
    fmt::print("{:>4.1f} {:<9} {:>4} {:<24} {:<24} {:<22} {:>5.0f} %  {}\n", megapixels,
               training ? "training" : "validate", photographs.size(), spread(plain.cpu_ms), spread(scaled.cpu_ms),
               spread(ratios), scaled.shrunk_share() * 100,
               decibels.empty() ? "" : fmt::format("{:.1f} to {:.1f} dB", decibels.front(), decibels.back()));
  }
}

void run(const std::vector<std::string>& words) {
  const std::int64_t rounds = words.empty() ? 7 : std::stoll(words[0]);
  if (rounds < 1) fail(ErrorCode::invalid_argument, "scaled_bench: {} rounds; wanted at least 1", rounds);
  std::vector<std::string> folders(words.begin() + std::min<std::ptrdiff_t>(std::ssize(words), 1), words.end());
  if (folders.empty()) folders = {"/usr/share/wallpapers", "/usr/share/backgrounds"};
  const auto all = photographs(folders);
  if (all[0].empty()) {
    fmt::print("no large images: make setup JOB=photos installs wallpapers\n");
    return;
  }
  fmt::print("CPU ms an image, decoded and resized to 224 on one thread, {} rounds\n", rounds);
  fmt::print("{:>4} {:<9} {:>4} {:<24} {:<24} {:<22} {:>7}  PSNR\n", "Mpx", "", "of", "as it is", "scaled", "ratio",
             "scaled");
  for (std::size_t size = 0; size < all.size(); ++size) compare(kMegapixels[size], all[size], rounds);
}

}  // namespace
}  // namespace headrace::transform

int main(int argc, char** argv) {
  return headrace::run_program(argc, argv, headrace::transform::run);
}
