#include "core/hardware/machine_peaks.h"

#include <fcntl.h>
#include <headrace/error.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/descriptor.h"
#include "core/base/files.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "headrace-machine-peaks";
constexpr int kVersion = 1;
constexpr std::size_t kKept = 32;
constexpr std::size_t kFileMax = 64 << 10;
constexpr int kRepeats = 5;
constexpr std::int64_t kMatrix = 1024;
constexpr std::size_t kCopied = 32 << 20;       // Bytes that each thread copies, in one or more passes:
constexpr std::size_t kReadMax = 512 << 20;     // of many threads together no more are kept to be copied,
constexpr std::size_t kReadOfThread = 8 << 20;  // but so many of each: with its copy, beyond its share of any cache.
constexpr std::size_t kTouched = 16 << 20;
constexpr std::chrono::milliseconds kLook{150};  // Enough ticks of the kernel's clock on two cores.

template <class Work>
double best_seconds(Work&& work) {
  work();  // Allocates, and starts threads.
  double best_s = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kRepeats; ++i) {
    const std::int64_t begin_ns = monotonic_ns();
    work();
    best_s = std::min(best_s, seconds_since(begin_ns));
  }
  return std::max(best_s, 1e-9);
}

double copied_per_second(std::int64_t threads) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(1, threads));
  const std::size_t size = std::clamp(kReadMax / count, kReadOfThread, kCopied), passes = kCopied / size;
  std::vector<std::vector<char>> from(count, std::vector<char>(size, 1)), to = from;
  const auto copy = [&](std::size_t i) {
    for (std::size_t pass = 0; pass < passes; ++pass) std::memcpy(to[i].data(), from[i].data(), size);
  };
  const double seconds = best_seconds([&] {
    std::vector<std::jthread> workers;
    for (std::size_t i = 1; i < count; ++i) workers.emplace_back(copy, i);
    copy(0);
  });
  return 2.0 * static_cast<double>(count * passes * size) / seconds;
}

double seconds_of_page_fault() {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const double seconds = best_seconds([page] {
    void* const memory = ::mmap(nullptr, kTouched, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw Error(ErrorCode::out_of_memory, "hardware: cannot map 16 MiB");
    ::madvise(memory, kTouched, MADV_NOHUGEPAGE);  // A fault of 2 MiB would be counted as one.
    for (std::size_t at = 0; at < kTouched; at += page) static_cast<volatile char*>(memory)[at] = 1;
    ::munmap(memory, kTouched);
  });
  return seconds * static_cast<double>(page) / static_cast<double>(kTouched);
}

std::optional<double> others_between(const CpuLoad& before, const CpuLoad& after) {
  const CpuUse use = cpu_use_between(before, after);
  if (!use.others) return std::nullopt;
  return std::min(1.0, *use.others + use.steal.value_or(0));
}

bool was_disturbed(const MachinePeaks& peaks) {
  return peaks.others && *peaks.others > kPeaksOthersMax;
}

// Where the kernel does not tell, it is not.
bool is_quiet_now(const PeaksMeter& meter) {
  const CpuLoad before = meter.read_load();
  std::this_thread::sleep_for(kLook);
  const std::optional<double> others = others_between(before, meter.read_load());
  return others && *others <= kPeaksOthersMax;
}

MachinePeaks better_of(const MachinePeaks& a, MachinePeaks b) {
  b.flops_per_s = std::max(a.flops_per_s, b.flops_per_s);
  b.copy_bytes_per_s = std::max(a.copy_bytes_per_s, b.copy_bytes_per_s);
  b.page_fault_s = std::min(a.page_fault_s, b.page_fault_s);
  return b;
}

// Empty: there is no such file of this user's. Follows no link, and waits at no pipe.
std::string own_content(const std::filesystem::path& file) {
  const Descriptor descriptor{::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  struct stat found {};
  if (descriptor.number() < 0 || ::fstat(descriptor.number(), &found) != 0) return {};
  if (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid()) return {};
  std::string content(kFileMax + 1, '\0');
  const ssize_t size = ::read(descriptor.number(), content.data(), content.size());
  if (size < 0 || static_cast<std::size_t>(size) > kFileMax) return {};
  content.resize(static_cast<std::size_t>(size));
  return content;
}

bool is_rate(const Json& value) {
  return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() > 0;
}

std::optional<MachinePeaks> peaks_of(const Json& row) {
  if (!row.is_object()) return std::nullopt;
  for (const char* name : {"cpu", "library", "measured"}) {
    if (!row.contains(name) || !row[name].is_string()) return std::nullopt;
  }
  for (const char* name : {"cores", "threads"}) {
    if (!row.contains(name) || !row[name].is_number_integer()) return std::nullopt;
  }
  for (const char* name : {"flops_per_s", "copy_bytes_per_s", "page_fault_s"}) {
    if (!row.contains(name) || !is_rate(row[name])) return std::nullopt;
  }
  // A row of old does not have it, and may be of a busy machine.
  const Json others = row.value("others", Json("unknown"));
  const bool is_share = others.is_number() && others.get<double>() >= 0 && others.get<double>() <= 1;
  if (!is_share && !others.is_null()) return std::nullopt;
  return MachinePeaks{{row["cpu"].get<std::string>(), row["cores"].get<int>(), row["threads"].get<std::int64_t>(),
                       row["library"].get<std::string>()},
                      row["flops_per_s"].get<double>(),
                      row["copy_bytes_per_s"].get<double>(),
                      row["page_fault_s"].get<double>(),
                      row["measured"].get<std::string>(),
                      is_share ? std::optional(others.get<double>()) : std::nullopt};
}

std::vector<MachinePeaks> kept_in(const std::filesystem::path& file) {
  const Json document = Json::parse(own_content(file), nullptr, false);
  if (!document.is_object() || document.value("format", Json()) != kFormat ||
      document.value("version", Json()) != kVersion || !document.contains("peaks") || !document["peaks"].is_array()) {
    return {};
  }
  std::vector<MachinePeaks> kept;
  for (const Json& row : document["peaks"]) {
    if (auto peaks = peaks_of(row)) kept.push_back(*std::move(peaks));
  }
  return kept;
}

std::string text_of(const std::vector<MachinePeaks>& kept) {
  Json document{{"format", kFormat}, {"version", kVersion}, {"peaks", Json::array()}};
  for (const MachinePeaks& peaks : kept) {
    document["peaks"].push_back({{"cpu", peaks.key.cpu},
                                 {"cores", peaks.key.cores},
                                 {"threads", peaks.key.threads},
                                 {"library", peaks.key.library},
                                 {"flops_per_s", peaks.flops_per_s},
                                 {"copy_bytes_per_s", peaks.copy_bytes_per_s},
                                 {"page_fault_s", peaks.page_fault_s},
                                 {"measured", peaks.measured},
                                 {"others", peaks.others ? Json(*peaks.others) : Json(nullptr)}});
  }
  return document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

// Whether write_file() would make a file of our own: it would replace what a link leads to, and wait at a pipe.
bool may_write(const std::filesystem::path& file) {
  struct stat found {};
  const bool is_new_or_regular = ::lstat(file.c_str(), &found) != 0 || S_ISREG(found.st_mode);
  return is_new_or_regular && ::stat(file.parent_path().c_str(), &found) == 0 && found.st_uid == ::geteuid();
}

void keep(std::vector<MachinePeaks> kept, const MachinePeaks& newest, const std::filesystem::path& file) {
  std::erase_if(kept, [&](const MachinePeaks& peaks) { return peaks.key == newest.key; });
  kept.push_back(newest);
  if (kept.size() > kKept) kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(kKept));
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error || !may_write(file)) return;
  try {
    write_file(file, text_of(kept));
  } catch (const Error&) {  // The next run measures again.
    return;
  }
}

}  // namespace

MachinePeaks measure_peaks(PeaksKey key, const PeaksMeter& meter) {
  constexpr double kOperations = 2.0 * kMatrix * kMatrix * kMatrix;
  MachinePeaks peaks{.key = std::move(key)};
  const CpuLoad before = meter.read_load();
  peaks.flops_per_s = kOperations / best_seconds([&] { meter.multiply(kMatrix); });
  peaks.copy_bytes_per_s = copied_per_second(peaks.key.threads);
  peaks.page_fault_s = seconds_of_page_fault();
  peaks.others = others_between(before, meter.read_load());
  peaks.measured = utc_text();
  return peaks;
}

std::filesystem::path peaks_file() {
  const auto absolute = [](const char* name) -> std::filesystem::path {
    const char* const given = std::getenv(name);
    const std::filesystem::path path = given == nullptr ? "" : given;
    return path.is_absolute() ? path : std::filesystem::path{};
  };
  std::filesystem::path folder = absolute("XDG_CACHE_HOME");
  if (folder.empty()) {
    const std::filesystem::path home = absolute("HOME");
    if (home.empty()) return {};
    folder = home / ".cache";
  }
  return folder / "headrace" / "machine_peaks.json";
}

MachinePeaks machine_peaks(const PeaksKey& key, const PeaksMeter& meter, const std::filesystem::path& file) {
  std::vector<MachinePeaks> kept = file.empty() ? std::vector<MachinePeaks>{} : kept_in(file);
  const auto found =
      std::find_if(kept.begin(), kept.end(), [&](const MachinePeaks& peaks) { return peaks.key == key; });
  const bool is_kept = found != kept.end();
  if (is_kept && !(was_disturbed(*found) && is_quiet_now(meter))) return *found;
  MachinePeaks peaks = measure_peaks(key, meter);
  if (is_kept) peaks = better_of(*found, std::move(peaks));
  if (!file.empty()) keep(std::move(kept), peaks, file);
  return peaks;
}

}  // namespace headrace
