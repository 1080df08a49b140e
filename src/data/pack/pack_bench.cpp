// Many small files and the same data packed: how fast each is read when the page cache holds nothing of it, and when it
// holds all.
//
//   pack_bench [FILES] [ROUNDS] [FOLDER]    FILES: 20,000; FOLDER: where both are written and deleted again
//
// Packs, verifies by the checksums, and compares every sample of the pack with its file. Then all arms of a round run
// in turn. Before a cold pass the files are dropped from the page cache (posix_fadvise, which needs no privilege); what
// mincore() finds of them then is printed, as a file system may ignore it. Entries of folders and inodes stay cached,
// as nothing unprivileged drops them, and so may a disk's own cache and that of a virtual machine's host.
#include <fmt/format.h>
#include <headrace/source.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/middle.h"
#include "core/base/random.h"
#include "core/base/run_program.h"
#include "data/pack/pack_build.h"
#include "data/source/read_sample.h"
#include "data/store/page_cache.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr int kClasses = 10;

bool always(std::int64_t /*done*/, std::int64_t /*samples*/) {
  return true;
}

std::vector<fs::path> files_below(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator{path}) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

// Of up to 200 of the files.
double cached_share(const std::vector<fs::path>& files) {
  CachedPages found;
  for (std::size_t i = 0; i < files.size(); i += files.size() / 200 + 1) found.add(pages_in_cache(files[i]));
  return found.share();
}

// Reads every sample, in order or in a random one.
void read_all(const Source& source, std::int64_t threads, bool shuffled, std::int64_t round) {
  const Permutation order{source.size(), 5, round};
  std::atomic<std::int64_t> next{0};
  std::vector<std::jthread> workers;
  for (std::int64_t t = 0; t < threads; ++t) {
    workers.emplace_back([&] {
      Sample sample;
      for (std::int64_t i = next++; i < source.size(); i = next++) source.read(shuffled ? order(i) : i, sample);
    });
  }
}

void compare_samples(const Source& folder, const Source& pack) {
  Sample expected, found;
  for (std::int64_t i = 0; i < folder.size(); ++i) {
    folder.read(i, expected);
    pack.read(i, found);
    const bool same_bytes = std::ranges::equal(expected.image().bytes, found.image().bytes);
    if (!same_bytes || expected.label() != found.label()) {
      fail(ErrorCode::corrupt_data, "pack_bench: {} is not {}", pack.name(i), folder.name(i));
    }
  }
}

struct Arm {
  const char* name;
  const Source& source;
  std::vector<fs::path> files;
  std::int64_t threads;
  bool shuffled, cold;
  std::vector<double> rates{}, shares{};  // Samples a second; of the pages that were cached before.
};

void measure(std::vector<Arm>& arms, std::int64_t rounds) {
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (Arm& arm : arms) {
      if (arm.cold) {
        for (const fs::path& file : arm.files) drop_from_page_cache(file);
      } else {
        read_all(arm.source, 1, false, round);
      }
      arm.shares.push_back(cached_share(arm.files));
      const std::int64_t begin_ns = monotonic_ns();
      read_all(arm.source, arm.threads, arm.shuffled, round);
      arm.rates.push_back(static_cast<double>(arm.source.size()) / seconds_since(begin_ns));
    }
  }
  fmt::print("{:<8} {:<6} {:<10} {:>7} {:>11} {:>9} {:>9} {:>9} {:>8}\n", "", "cache", "order", "threads", "samples/s",
             "lowest", "highest", "MB/s", "cached");
  for (const Arm& arm : arms) {
    std::int64_t bytes = 0;
    for (std::int64_t i = 0; i < arm.source.size(); ++i) bytes += sample_bytes_of(arm.source, i);
    const auto [lowest, highest] = std::minmax_element(arm.rates.begin(), arm.rates.end());
    const double rate = middle_of(arm.rates);
    fmt::print("{:<8} {:<6} {:<10} {:>7} {:>11.0f} {:>9.0f} {:>9.0f} {:>9.1f} {:>7.1f}%\n", arm.name,
               arm.cold ? "cold" : "warm", arm.shuffled ? "random" : "in order", arm.threads, rate, *lowest, *highest,
               rate * static_cast<double>(bytes) / static_cast<double>(arm.source.size()) * 1e-6,
               100 * middle_of(arm.shares));
  }
}

void run(const std::vector<std::string>& words) {
  const std::int64_t files = words.empty() ? 20'000 : std::stoll(words[0]);
  const std::int64_t rounds = words.size() > 1 ? std::stoll(words[1]) : 3;
  if (files < kClasses || rounds < 1)
    fail(ErrorCode::invalid_argument, "pack_bench: {} files, {} rounds", files, rounds);
  if (words.size() > 2) ::setenv("TMPDIR", words[2].c_str(), 1);
  const TinyImages images{{.classes = kClasses, .count = static_cast<int>(files / kClasses)}};
  const fs::path pack = images.folder() / "files.pack";
  const auto seconds_of = [](const auto& work) {
    const std::int64_t begin_ns = monotonic_ns();
    work();
    return seconds_since(begin_ns);
  };
  const double packing = seconds_of([&] { write_pack({.source = images.uri(), .out = pack, .threads = 2}, always); });
  PackCheck check;
  const double verifying = seconds_of([&] { check = verify_pack(pack, always).value(); });
  if (check.damaged > 0) fail(ErrorCode::corrupt_data, "pack_bench: {} damaged samples", check.damaged);
  const auto folder = open_source(images.uri(), Split::train),
             packed = open_source("pack:" + pack.string(), Split::train);
  compare_samples(*folder, *packed);
  fmt::print(
      "{} files of both splits packed in {:.1f} s, verified in {:.1f} s; {} read back bit-identical; {} rounds\n",
      check.samples, packing, verifying, folder->size(), rounds);
  ::sync();  // Pages that are not written yet cannot be dropped.
  std::vector<Arm> arms;
  for (const auto& [cold, shuffled] : {std::pair{true, false}, std::pair{true, true}, std::pair{false, true}}) {
    for (const std::int64_t threads : {1, 8}) {
      arms.push_back({"files", *folder, files_below(images.folder() / "train"), threads, shuffled, cold});
      arms.push_back({"pack", *packed, {pack}, threads, shuffled, cold});
    }
  }
  measure(arms, rounds);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  return headrace::run_program(argc, argv, headrace::run);
}
