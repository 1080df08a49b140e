// Photographs from their files to batches of 64, without and with their entropy index, against libjpeg-turbo that reads
// and decodes the same files and does nothing else. All arms of a round run in turn, so that a busy moment of the
// machine hits all of them; one untimed round puts the files into the page cache.
//
//   photo_bench [FOLDER] [ROUNDS]    FOLDER: ImageFolder layout (make setup JOB=photos), of which DIR/train is read
//
// Then, in processes of their own: the resident memory of a loader with three batches in its pool, and the time to the
// first batch; and the consumer's wait for a batch when it is slower than the loader.
#include <fmt/format.h>
#include <headrace/loader.h>
#include <headrace/source.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/middle.h"
#include "core/base/run_program.h"
#include "core/base/temporary_folder.h"
#include "core/hardware/machine.h"
#include "data/pack/index_build.h"
#include "media/codec/jpeg_reader.h"

namespace headrace {
namespace {

constexpr std::int64_t kBatch = 64;

enum class Pass { train, evaluate };

DataOptions options_for(std::int64_t threads, PixelType type = PixelType::f32) {
  DataOptions options;
  options.index = IndexUse::none;
  options.batch_size = kBatch;
  options.num_workers = threads;
  options.transform.size = 224;
  options.transform.resize = 256;
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  options.transform.dtype = type;
  if (type != PixelType::u8) {
    options.transform.mean = {0.485, 0.456, 0.406};
    options.transform.std = {0.229, 0.224, 0.225};
  }
  return options;
}

// The folder with a link in place of its files, so that no index is left beside somebody's data.
class LinkedFolder {
 public:
  explicit LinkedFolder(const std::filesystem::path& data) {
    std::filesystem::create_directory_symlink(std::filesystem::canonical(data / "train"), path() / "train");
  }
  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

// Reads every file of the source and decodes the whole image, on `threads` threads.
void decode_all(const Source& source, std::int64_t threads) {
  std::atomic<std::int64_t> next{0};
  std::vector<std::jthread> workers;
  for (std::int64_t t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      codec::detail::JpegReader reader;
      Sample sample;
      std::vector<std::uint8_t> pixels;
      for (std::int64_t i = next++; i < source.size(); i = next++) {
        source.read(i, sample);
        const codec::ImageInfo info = reader.open(sample.image().bytes, 3);
        const auto size = static_cast<std::size_t>(info.height) * static_cast<std::size_t>(info.width) * 3;
        pixels.resize(std::max(pixels.size(), size));
        reader.decode({0, 0, info.height, info.width}, std::span{pixels}.first(size));
      }
    });
  }
}

struct Arm {
  std::string name;
  std::function<void(std::int64_t round)> run;
  std::vector<double> rates{}, cpu_ms{};  // Images a second and CPU time of one, one value a round.
  std::unique_ptr<Loader> loader{};
};

void take_all(Loader& loader, std::int64_t round) {
  auto epoch = loader.epoch(round);
  while (epoch.next()) {
  }
}

std::vector<Arm> arms_of(const std::shared_ptr<const Source>& source) {
  std::vector<Arm> arms;
  for (const std::int64_t threads : {1, 2}) {
    const auto add = [&](const std::string& name, std::function<void(std::int64_t)> run) -> Arm& {
      arms.push_back({fmt::format("{}, {} thread{}", name, threads, threads == 1 ? "" : "s"), std::move(run)});
      return arms.back();
    };
    const auto add_loader = [&](const std::string& name, const DataOptions& options, Pass pass) {
      auto loader = std::make_unique<Loader>(source, options, 1, pass == Pass::train);
      add(name, [mine = loader.get()](std::int64_t round) { take_all(*mine, round); }).loader = std::move(loader);
    };
    add("libjpeg-turbo, whole", [&source = *source, threads](std::int64_t) { decode_all(source, threads); });
    add_loader("train float32", options_for(threads), Pass::train);
    DataOptions indexed = options_for(threads);
    indexed.index = IndexUse::use;
    add_loader("train float32, index", indexed, Pass::train);
    add_loader("train uint8", options_for(threads, PixelType::u8), Pass::train);
    add_loader("validate float32", options_for(threads), Pass::evaluate);
  }
  return arms;
}

void compare(const std::shared_ptr<const Source>& source, std::int64_t rounds) {
  std::vector<Arm> arms = arms_of(source);
  const auto images = static_cast<double>(source->size());
  for (std::int64_t round = 0; round <= rounds; ++round) {
    for (Arm& arm : arms) {
      const std::int64_t begin_ns = monotonic_ns(), begin_cpu_ns = process_cpu_ns();
      arm.run(round);
      if (round == 0) continue;
      arm.cpu_ms.push_back(static_cast<double>(process_cpu_ns() - begin_cpu_ns) * 1e-6 / images);
      arm.rates.push_back(images / seconds_since(begin_ns));
    }
  }
  fmt::print("{:<34} {:>9} {:>9} {:>9} {:>10} {:>9} {:>9}\n", "", "images/s", "lowest", "highest", "to libjpeg",
             "CPU ms", "of it");
  const Arm* whole = nullptr;
  for (const Arm& arm : arms) {
    if (arm.loader == nullptr) whole = &arm;
    std::vector<double> ratios, shares;
    for (std::size_t i = 0; i < arm.rates.size(); ++i) {
      ratios.push_back(arm.rates[i] / whole->rates[i]);
      shares.push_back(arm.cpu_ms[i] / whole->cpu_ms[i]);
    }
    const auto [lowest, highest] = std::minmax_element(arm.rates.begin(), arm.rates.end());
    fmt::print("{:<34} {:>9.0f} {:>9.0f} {:>9.0f} {:>10.2f} {:>9.3f} {:>9.2f}\n", arm.name, middle_of(arm.rates),
               *lowest, *highest, middle_of(ratios), middle_of(arm.cpu_ms), middle_of(shares));
    if (arm.loader == nullptr) continue;
    const LoaderStatistics found = arm.loader->statistics();
    const auto us = [&](std::int64_t ns) {
      return static_cast<double>(ns) * 1e-3 / static_cast<double>(found.samples);
    };
    fmt::print("{:<34} {:.0f} us of reading, {:.0f} of decoding, {:.0f} of resizing and writing\n", "",
               us(found.read_ns), us(found.decode_ns), us(found.busy_ns - found.read_ns - found.decode_ns));
  }
}

// A consumer that takes 50 ms for a batch. Nothing is prepared before an epoch begins, so its first batch is counted
// alone.
void wait_slowly(const std::shared_ptr<const Source>& source) {
  Loader loader(source, options_for(2), 1, true);
  std::vector<double> waits_us, first_us;
  for (std::int64_t index = 0; waits_us.size() < 120; ++index) {
    auto epoch = loader.epoch(index);
    for (;;) {
      const std::int64_t begin_ns = monotonic_ns();
      const auto batch = epoch.next();
      if (!batch) break;
      const double wait_us = seconds_since(begin_ns) * 1e6;
      (batch->index() == 0 ? first_us : waits_us).push_back(wait_us);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  std::sort(waits_us.begin(), waits_us.end());
  fmt::print(
      "a consumer of 50 ms a batch waits {:.0f} us, 1 in 100 times {:.0f}, at most {:.0f} of {} batches; {:.1f} ms "
      "for the first of an epoch\n",
      middle_of(waits_us), waits_us[waits_us.size() * 99 / 100], waits_us.back(), waits_us.size(),
      middle_of(first_us) * 1e-3);
}

// ---- In a process of its own ----

void report_first_batch(const std::string& uri, std::int64_t since_ns) {
  Loader loader(open_source(uri, Split::train), options_for(2), 1, true);
  auto epoch = loader.epoch(0);
  const std::int64_t size = epoch.next().value().size();
  fmt::print("first batch of {} after {:.1f} ms\n", size, seconds_since(since_ns) * 1e3);
}

void report_memory(const std::string& uri) {
  const std::int64_t before = resident_memory().value_or(0);
  DataOptions options = options_for(2);
  options.prefetch_batches = 1;  // And two of the consumer.
  Loader loader(open_source(uri, Split::train), options, 1, true);
  std::int64_t most = 0;
  std::optional<Batch> held, before_it;  // With the one in the making, all that the pool has.
  auto epoch = loader.epoch(0);
  while (auto batch = epoch.next()) {
    before_it = std::exchange(held, std::move(batch));
    most = std::max(most, resident_memory().value_or(0));
  }
  fmt::print("{:.0f} MB more resident memory than the empty process, of which batches are {:.0f}\n",
             static_cast<double>(most - before) * 1e-6, static_cast<double>(loader.statistics().pool_bytes) * 1e-6);
}

void start(const std::string& program, const char* mode, const std::string& folder) {
  std::fflush(stdout);
  const std::string command = fmt::format("'{}' {} '{}' {}", program, mode, folder, monotonic_ns());
  if (std::system(command.c_str()) != 0) fail(ErrorCode::io, "photo_bench: {} failed", command);
}

void run(const std::string& program, const std::vector<std::string>& words) {
  if (!words.empty() && words[0] == "--first-batch") {
    return report_first_batch("folder:" + words.at(1), std::stoll(words.at(2)));
  }
  if (!words.empty() && words[0] == "--memory") return report_memory("folder:" + words.at(1));
  const std::string folder = words.empty() ? "photos" : words[0];
  if (words.empty() && !std::filesystem::exists(folder)) {
    fmt::print("no photographs: make setup JOB=photos\n");
    return;
  }
  const std::int64_t rounds = words.size() > 1 ? std::stoll(words[1]) : 9;
  if (rounds < 1) fail(ErrorCode::invalid_argument, "photo_bench: {} rounds; wanted at least 1", rounds);
  const LinkedFolder linked{folder};
  const std::shared_ptr<const Source> source = open_source("folder:" + linked.path().string(), Split::train);
  const auto index = build_entropy_index(*source, 2, [](std::int64_t) { return true; });
  fmt::print("{} images, an entropy index of {:.2f} % of their bytes, {} rounds\n", source->size(),
             100.0 * static_cast<double>(index->index_bytes) / static_cast<double>(index->data_bytes), rounds);
  compare(source, rounds);
  wait_slowly(source);
  start(program, "--memory", folder);
  for (int i = 0; i < 3; ++i) start(program, "--first-batch", folder);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::run_program(argc, argv, [argv](const auto& words) { headrace::run(argv[0], words); });
}
