// One measurement of the data targets a call, for run.py, which interleaves them. Prints one JSON line.
//   equal FOLDER                             whether the sequential way and a Loader give the same bytes
//   load FOLDER WAY THREADS STATE            seconds of one epoch. WAY: sequential | loader; STATE: cold | warm |
//                                            cached (the second epoch of a loader that keeps decoded images)
//   chain FOLDER SET THREADS FROM SIZE SECONDS    seconds an image. SET: best | plain; FROM: files | pixels
//   wait FOLDER CONSUMER BATCHES THREADS     every request's wait. CONSUMER: sleeps | computes (50 ms) | none
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <headrace/loader.h>
#include <headrace/source.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/hash.h"
#include "core/base/kernel_sets.h"
#include "core/base/random.h"
#include "core/base/run_program.h"
#include "data/store/page_cache.h"
#include "data/transform/crop.h"
#include "data/transform/resize.h"
#include "data/transform/shorthand.h"
#include "media/codec/jpeg_reader.h"

namespace {

using namespace headrace;

constexpr std::int64_t kBatch = 64, kSeed = 1;

// Every sample once, in the order of its index: what a consumer that loads for itself can do as well.
DataOptions options_for(std::int64_t threads, std::int64_t size) {
  DataOptions options;
  options.index = IndexUse::none;
  options.batch_size = kBatch;
  options.num_workers = threads;
  options.shuffle = false;
  options.transform.size = size;
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.485, 0.456, 0.406};
  options.transform.std = {0.229, 0.224, 0.225};
  return options;
}

// A careful first loop without a loader: libjpeg-turbo decodes the whole image, then a pass each cuts and resizes,
// flips, makes floats in 0..1, normalises, and copies into a batch of its own. All on the calling thread.
class Sequential {
 public:
  Sequential(const Source& source, const DataOptions& options)
      : source_(source),
        options_(options),
        crop_(transform::crop_of(options.transform, /*training=*/true)),
        values_(3 * static_cast<std::size_t>(area())) {}

  // Batches of the first epoch, one at a time.
  void run(const std::function<void(std::span<const float>, std::span<const std::int64_t>)>& take) {
    for (std::int64_t first = 0; first < source_.size(); first += options_.batch_size) {
      const std::int64_t count = std::min(options_.batch_size, source_.size() - first);
      images_.resize(static_cast<std::size_t>(count) * values_.size());
      std::vector<std::int64_t> labels;
      for (std::int64_t i = 0; i < count; ++i) {
        labels.push_back(make(first + i));
        std::memcpy(&images_[static_cast<std::size_t>(i) * values_.size()], values_.data(),
                    values_.size() * sizeof(float));
      }
      take(images_, labels);
    }
  }

 private:
  std::int64_t area() const { return options_.transform.size * options_.transform.size; }

  // The draws are those of a Loader: crop and flip, in this order, from (seed, epoch, sample).
  std::int64_t make(std::int64_t index) {
    source_.read(index, sample_);
    const codec::ImageInfo info = reader_.open(sample_.image().bytes, 3);
    pixels_.resize(static_cast<std::size_t>(info.height) * static_cast<std::size_t>(info.width) * 3);
    reader_.decode({0, 0, info.height, info.width}, pixels_);
    SampleRandom random{kSeed, 0, index};
    const auto window = transform::choose_crop(crop_, info.height, info.width, random);
    const bool flip = random.uniform() < options_.transform.flip_probability;
    resize(window, info.width);
    if (flip) mirror();
    scale();
    normalise();
    return sample_.label();
  }

  void resize(const transform::CropWindow& window, int width) {
    const transform::Stretch rows = transform::needed(window.vertical), columns = transform::needed(window.horizontal);
    const std::ptrdiff_t stride = std::ptrdiff_t{width} * 3;
    const auto begin = static_cast<std::size_t>(rows.begin * stride + std::ptrdiff_t{columns.begin} * 3);
    const auto size = static_cast<std::size_t>((rows.size - 1) * stride + std::ptrdiff_t{columns.size} * 3);
    resized_.resize(values_.size());
    resizer_.resize({std::span{pixels_}.subspan(begin, size), stride}, window.vertical, window.horizontal, 3, resized_);
  }
  void mirror() {
    const auto side = static_cast<std::size_t>(options_.transform.size);
    for (std::size_t y = 0; y < side; ++y) {
      std::uint8_t* row = &resized_[y * side * 3];
      for (std::size_t x = 0; x < side / 2; ++x)
        std::swap_ranges(row + 3 * x, row + 3 * x + 3, row + 3 * (side - 1 - x));
    }
  }
  void scale() {
    const auto plane = static_cast<std::size_t>(area());
    for (std::size_t i = 0; i < plane; ++i) {
      for (std::size_t c = 0; c < 3; ++c) values_[c * plane + i] = static_cast<float>(resized_[3 * i + c]) / 255.0F;
    }
  }
  void normalise() {
    const auto plane = static_cast<std::size_t>(area());
    for (std::size_t c = 0; c < 3; ++c) {
      const auto mean = static_cast<float>(options_.transform.mean[c]);
      const auto deviation = static_cast<float>(options_.transform.std[c]);
      for (std::size_t i = 0; i < plane; ++i) values_[c * plane + i] = (values_[c * plane + i] - mean) / deviation;
    }
  }

  const Source& source_;
  DataOptions options_;
  transform::CropStage crop_;
  codec::detail::JpegReader reader_;
  transform::Resizer resizer_;
  Sample sample_;
  std::vector<std::uint8_t> pixels_, resized_;
  std::vector<float> values_, images_;
};

void take_all(Loader& loader, std::int64_t epoch_index) {
  auto epoch = loader.epoch(epoch_index);
  while (epoch.next()) {
  }
}

std::string hash_of_epoch(Loader& loader) {
  Xxh3Stream stream;
  auto epoch = loader.epoch(0);
  while (const auto batch = epoch.next()) {
    stream.update(batch->field("image").bytes);
    stream.update(batch->field("labels").bytes);
  }
  return hex(stream.digest());
}

std::shared_ptr<const Source> source_of(const std::string& folder) {
  return open_source("folder:" + folder, Split::train);
}

void equal(const std::string& folder) {
  const auto source = source_of(folder);
  Xxh3Stream stream;
  Sequential{*source, options_for(0, 224)}.run(
      [&](std::span<const float> images, std::span<const std::int64_t> labels) {
        stream.update(std::as_bytes(images));
        stream.update(std::as_bytes(labels));
      });
  Loader loader(source, options_for(2, 224), kSeed, /*training=*/true);
  DataOptions keeping = options_for(2, 224);
  keeping.cache = Cache::decoded;
  Loader cached(source, keeping, kSeed, true);
  take_all(cached, 1);
  fmt::print("{{\"sequential\": \"{}\", \"loader\": \"{}\", \"cached\": \"{}\"}}\n", hex(stream.digest()),
             hash_of_epoch(loader), hash_of_epoch(cached));
}

// ---- T-07 ----

// The share of the files' pages that lies in the page cache all the same.
double evict_all(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ::sync();  // Pages that wait to be written stay.
  for (const std::filesystem::path& file : files) drop_from_page_cache(file);
  CachedPages found;
  for (const std::filesystem::path& file : files) found.add(pages_in_cache(file));
  return found.share();
}

void load(const std::string& folder, const std::string& way, std::int64_t threads, const std::string& state) {
  const auto source = source_of(folder);
  DataOptions options = options_for(threads, 224);
  if (state == "cached") options.cache = Cache::decoded;
  Loader loader(source, options, kSeed, true);
  Sequential sequential{*source, options};
  const auto run = [&](std::int64_t epoch) {
    if (way == "loader") return take_all(loader, epoch);
    if (way != "sequential") fail(ErrorCode::invalid_argument, "way {}; wanted sequential | loader", way);
    sequential.run([](std::span<const float>, std::span<const std::int64_t>) {});
  };
  double resident = 1;
  if (state == "cold") {
    resident = evict_all(folder);
  } else if (state == "cached") {
    run(0);
  } else if (state == "warm") {
    Sample sample;
    for (std::int64_t i = 0; i < source->size(); ++i) source->read(i, sample);
  } else {
    fail(ErrorCode::invalid_argument, "state {}; wanted cold | warm | cached", state);
  }
  const std::int64_t decoded_before = loader.statistics().decoded, begin_ns = monotonic_ns();
  run(state == "cached" ? 1 : 0);
  fmt::print("{{\"images\": {}, \"seconds\": {}, \"decoded\": {}, \"resident\": {}}}\n", source->size(),
             seconds_since(begin_ns), loader.statistics().decoded - decoded_before, resident);
}

// ---- T-08 ----

void chain(const std::vector<std::string>& words) {
  const auto source = source_of(words[1]);
  use_kernel_set(words[2] == "best" ? "" : words[2]);
  DataOptions options = options_for(std::stoll(words[3]), std::stoll(words[5]));
  options.batch_size = 8;
  if (words[4] == "pixels") options.cache = Cache::decoded;
  Loader loader(source, options, kSeed, true);
  const std::string hash = hash_of_epoch(loader);  // Fills the cache, too.
  const double wanted_s = std::stod(words[6]);
  const std::int64_t decoded_before = loader.statistics().decoded, begin_ns = monotonic_ns();
  std::int64_t images = 0;
  for (std::int64_t epoch = 1; images == 0 || seconds_since(begin_ns) < wanted_s; ++epoch) {
    take_all(loader, epoch);
    images += source->size();
  }
  fmt::print("{{\"images\": {}, \"seconds\": {}, \"hash\": \"{}\", \"decoded\": {}, \"set\": \"{}\"}}\n", images,
             seconds_since(begin_ns), hash, loader.statistics().decoded - decoded_before,
             words[2] == "best" ? kernel_sets().front() : words[2]);
}

// ---- T-09 ----

void consume(const std::string& how) {
  constexpr std::int64_t kNs = 50'000'000;
  if (how == "sleeps") std::this_thread::sleep_for(std::chrono::nanoseconds(kNs));
  if (how != "computes") return;
  const std::int64_t end_ns = thread_cpu_ns() + kNs;
  while (thread_cpu_ns() < end_ns) {
  }
}

void wait_for_batches(const std::string& folder, const std::string& consumer, std::int64_t batches,
                      std::int64_t threads) {
  DataOptions options = options_for(threads, 224);
  options.last_batch = LastBatch::drop;
  Loader loader(source_of(folder), options, kSeed, true);
  std::vector<double> firsts_ms, waits_ms;  // Nothing is prepared before an epoch begins.
  for (std::int64_t index = 0; std::ssize(firsts_ms) + std::ssize(waits_ms) < batches; ++index) {
    auto epoch = loader.epoch(index);
    for (;;) {
      const std::int64_t begin_ns = monotonic_ns();
      const auto batch = epoch.next();
      if (!batch) break;
      (batch->index() == 0 ? firsts_ms : waits_ms).push_back(1000 * seconds_since(begin_ns));
      consume(consumer);
    }
  }
  fmt::print("{{\"batch_size\": {}, \"waits_ms\": [{:.5f}], \"firsts_ms\": [{:.5f}]}}\n", kBatch,
             fmt::join(waits_ms, ", "), fmt::join(firsts_ms, ", "));
}

void run(const std::vector<std::string>& words) {
  const std::map<std::string, std::size_t> lengths{{"equal", 2}, {"load", 5}, {"chain", 7}, {"wait", 5}};
  const auto found = words.empty() ? lengths.end() : lengths.find(words[0]);
  if (found == lengths.end() || found->second != words.size()) {
    fail(ErrorCode::invalid_argument,
         "wanted equal FOLDER | load FOLDER WAY THREADS STATE | chain FOLDER SET THREADS "
         "FROM SIZE SECONDS | wait FOLDER CONSUMER BATCHES THREADS, found {} words",
         words.size());
  }
  if (words[0] == "equal") return equal(words[1]);
  if (words[0] == "load") return load(words[1], words[2], std::stoll(words[3]), words[4]);
  if (words[0] == "chain") return chain(words);
  wait_for_batches(words[1], words[2], std::stoll(words[3]), std::stoll(words[4]));
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run, "data_targets");
}
