// Photographs a second: libjpeg-turbo reading and decoding whole files and nothing else, and a Loader that crops,
// resizes, flips and normalises them, without and with their entropy index. The arms of one round run in turn, so that
// a busy moment of the machine hits all of them.
//
//   index_bench PHOTOS [ROUNDS]     PHOTOS: a folder as folder:DIR reads it, of which a copy of the links is indexed
#include <headrace/error.h>
#include <headrace/loader.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <jpeglib.h>
#include "base/clock.h"
#include "data/index_build.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

struct Arm {
  std::string name;
  std::function<std::int64_t(std::int64_t round)> run;  // Photographs.
  std::vector<double> rates, cpu_ms;                    // One a round: photographs a second, CPU ms a photograph.
};

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// One thread's libjpeg, kept from file to file. libjpeg's own handler ends the program, which for a bench will do.
class WholeDecoder {
 public:
  WholeDecoder() {
    state_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&state_);
  }
  ~WholeDecoder() { jpeg_destroy_decompress(&state_); }
  WholeDecoder(const WholeDecoder&) = delete;
  WholeDecoder& operator=(const WholeDecoder&) = delete;

  void decode(std::span<const std::uint8_t> file) {
    jpeg_mem_src(&state_, file.data(), file.size());
    jpeg_read_header(&state_, TRUE);
    state_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&state_);
    const std::size_t stride = std::size_t{state_.output_width} * 3;
    pixels_.resize(stride * state_.output_height);
    while (state_.output_scanline < state_.output_height) {
      JSAMPROW row = pixels_.data() + stride * state_.output_scanline;
      jpeg_read_scanlines(&state_, &row, 1);
    }
    jpeg_finish_decompress(&state_);
  }

 private:
  jpeg_decompress_struct state_{};
  jpeg_error_mgr errors_{};
  std::vector<std::uint8_t> pixels_;
};

std::int64_t decode_all(const Source& source, int threads) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    WholeDecoder decoder;
    std::vector<std::uint8_t> buffer;
    for (std::int64_t i = next++; i < source.size(); i = next++) decoder.decode(source.read(i, buffer).bytes);
  };
  {
    std::vector<std::jthread> workers;
    for (int i = 0; i < threads; ++i) workers.emplace_back(work);
  }
  return source.size();
}

std::int64_t load_all(Loader& loader, std::int64_t round) {
  std::int64_t samples = 0;
  auto epoch = loader.epoch(round);
  while (const auto batch = epoch.next()) samples += batch->size();
  return samples;
}

DataOptions options_of(IndexUse index, int threads) {
  DataOptions options;
  options.batch_size = 64;
  options.threads = threads;
  options.index = index;
  options.transform.size = 224;
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.485, 0.456, 0.406};
  options.transform.deviation = {0.229, 0.224, 0.225};
  return options;
}

// The folder with links in place of its files, so that no index is left beside somebody's data.
class LinkedFolder {
 public:
  explicit LinkedFolder(const fs::path& data) {
    std::string pattern = (fs::temp_directory_path() / "headrace-index-bench-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) fail(ErrorCode::io, "index_bench: cannot make {}", pattern);
    path_ = pattern;
    fs::create_directory_symlink(fs::canonical(data / "train"), path_ / "train");
  }
  ~LinkedFolder() { fs::remove_all(path_); }
  LinkedFolder(const LinkedFolder&) = delete;
  LinkedFolder& operator=(const LinkedFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

void measure(Arm& arm, std::int64_t round) {
  const std::int64_t begin_ns = monotonic_ns();
  const double begin_cpu = cpu_seconds();
  const auto photographs = static_cast<double>(arm.run(round));
  if (round == 0) return;  // It only warms up.
  arm.rates.push_back(photographs * 1e9 / static_cast<double>(monotonic_ns() - begin_ns));
  arm.cpu_ms.push_back((cpu_seconds() - begin_cpu) * 1e3 / photographs);
}

int run(const fs::path& photos, std::int64_t rounds) {
  const LinkedFolder folder{photos};
  const std::shared_ptr<const Source> source = open_source("folder:" + folder.path().string(), Split::train);
  const auto summary = build_entropy_index(*source, 2, [](std::int64_t) { return true; });
  fmt::print("{} photographs, an index of {:.2f} % of their bytes\n", source->size(),
             100.0 * static_cast<double>(summary->index_bytes) / static_cast<double>(summary->data_bytes));
  std::vector<Arm> arms;
  for (const int threads : {1, 2}) {
    arms.push_back({fmt::format("libjpeg, whole files, {}", threads),
                    [&source, threads](std::int64_t) { return decode_all(*source, threads); }});
    for (const IndexUse index : {IndexUse::none, IndexUse::use}) {
      const auto loader = std::make_shared<Loader>(source, options_of(index, threads), 1, true);
      arms.push_back({fmt::format("Loader, {}, {}", index == IndexUse::none ? "no index" : "index", threads),
                      [loader](std::int64_t round) { return load_all(*loader, round); }});
    }
  }
  for (std::int64_t round = 0; round <= rounds; ++round) {
    for (Arm& arm : arms) measure(arm, round);
  }
  fmt::print("{:<28} {:>10} {:>10} {:>10} {:>14}   photographs/s of {} rounds, CPU ms each\n", "threads last", "median",
             "lowest", "highest", "CPU ms", rounds);
  for (Arm& arm : arms) {
    std::sort(arm.rates.begin(), arm.rates.end());
    std::sort(arm.cpu_ms.begin(), arm.cpu_ms.end());
    fmt::print("{:<28} {:>10.0f} {:>10.0f} {:>10.0f} {:>14.3f}\n", arm.name, arm.rates[arm.rates.size() / 2],
               arm.rates.front(), arm.rates.back(), arm.cpu_ms[arm.cpu_ms.size() / 2]);
  }
  return 0;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  const long rounds = argc > 2 ? std::atol(argv[2]) : 9;
  if (argc < 2 || rounds < 1) {
    std::fprintf(stderr, "usage: index_bench PHOTOS [ROUNDS, at least 1]\n");
    return argc < 2 ? 0 : 2;  // `make bench` runs every bench, also where there are no photographs.
  }
  try {
    return headrace::run(argv[1], rounds);
  } catch (const headrace::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
