// What buckets by shape save those who pad each batch to its highest and widest image, and what finding the shapes
// costs: of photographs as they are stored, and as they would be with a shorter side of 256.
//
//   buckets_bench [FOLDER]    ImageFolder layout (make setup JOB=photos), of which DIR/train is taken; the page cache
//   is warm
#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/source.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/run_program.h"
#include "data/loader/detail/order.h"

namespace headrace {
namespace {

constexpr std::int64_t kBatch = 64, kEpochs = 5, kShorterSide = 256;

// The images of a folder, as they are or resized to a shorter side.
class Resized final : public Source, ImageSizes {
 public:
  Resized(const Source& source, bool resized) : source_(source), can_(source.capabilities()), resized_(resized) {}
  std::int64_t size() const override { return source_.size(); }
  const SourceInfo& info() const override { return source_.info(); }
  void read(std::int64_t index, Sample& sample) const override { source_.read(index, sample); }
  std::string name(std::int64_t index) const override { return source_.name(index); }
  Capabilities capabilities() const override { return {.sizes = this, .known = can_.known}; }
  ImageSize image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const override {
    const ImageSize size = can_.sizes->image_size(index, buffer);
    if (!resized_) return size;
    const std::int64_t shorter = std::min(size.height, size.width);
    return {static_cast<int>(size.height * kShorterSide / shorter),
            static_cast<int>(size.width * kShorterSide / shorter)};
  }

 private:
  const Source& source_;
  const Capabilities can_;  // The source's.
  const bool resized_;
};

// Of the pixels of padded batches, those that are padding.
double padding(const Source& source, const std::vector<ImageSize>& shapes, const DataOptions& options) {
  const detail::Order order{source, options, 1, true};
  double padded = 0, filled = 0;
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const detail::EpochOrder in_epoch{order, epoch};
    for (std::int64_t begin = 0; begin < order.positions(); begin += kBatch) {
      const std::int64_t end = std::min(begin + kBatch, order.positions());
      ImageSize most;
      for (std::int64_t i = begin; i < end; ++i) {
        const ImageSize& shape = shapes[static_cast<std::size_t>(in_epoch.sample_at(i))];
        most = {std::max(most.height, shape.height), std::max(most.width, shape.width)};
        filled += static_cast<double>(shape.height) * shape.width;
      }
      padded += static_cast<double>(end - begin) * most.height * most.width;
    }
  }
  return 1 - filled / padded;
}

void report(const Source& source, const char* what) {
  std::vector<ImageSize> shapes;
  std::vector<std::uint8_t> buffer;
  const ImageSizes* const sizes = source.capabilities().sizes;
  const std::int64_t begin_ns = monotonic_ns();
  for (std::int64_t i = 0; i < source.size(); ++i) shapes.push_back(sizes->image_size(i, buffer));
  const double ms = seconds_since(begin_ns) * 1e3;
  fmt::print("{} images, {}; the headers of all are read by one thread in {:.0f} ms\n", source.size(), what, ms);
  DataOptions options;
  options.batch_size = kBatch;
  fmt::print("  shuffled: {:.1f} % of a padded batch is padding\n", 100 * padding(source, shapes, options));
  for (const std::int64_t buckets : {2, 4, 8, 16, 32}) {
    options.buckets = buckets;
    options.bucket_by = BucketBy::bytes;
    const double by_bytes = padding(source, shapes, options);
    options.bucket_by = BucketBy::shape;
    const std::int64_t before_ns = monotonic_ns();
    const detail::Order order{source, options, 1, true};
    const double build_ms = seconds_since(before_ns) * 1e3;
    fmt::print("  {:>2} buckets: by bytes {:.1f} %, by shape {:.1f} %; an order by shape is built in {:.0f} ms\n",
               buckets, 100 * by_bytes, 100 * padding(source, shapes, options), build_ms);
  }
}

void run(const std::vector<std::string>& words) {
  const std::string folder = words.empty() ? "photos" : words[0];
  if (words.empty() && !std::filesystem::exists(folder)) {
    fmt::print("no photographs: make setup JOB=photos\n");
    return;
  }
  const auto source = open_source("folder:" + folder, Split::train);
  report(Resized{*source, false}, "as stored");
  report(Resized{*source, true}, "with a shorter side of 256");
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::run_program(argc, argv, headrace::run);
}
