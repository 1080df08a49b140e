// The most that this machine computes and moves, measured once and kept in the user's cache folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/hardware/cpu_load.h"

namespace headrace {

// What a peak depends on.
struct PeaksKey {
  std::string cpu;           // Its model, as detect_machine() has it.
  int cores = 0;             // That this process may use.
  std::int64_t threads = 0;  // That compute.
  std::string library;       // What multiplies matrices: "torch 2.11.0".
  bool operator==(const PeaksKey&) const = default;
};

struct MachinePeaks {
  PeaksKey key;
  double flops_per_s = 0;       // Of a large product of float32 matrices; a multiplication and an addition are two.
  double copy_bytes_per_s = 0;  // Read and written, of a copy that no cache holds, by `threads` threads.
  double page_fault_s = 0;      // Of the first touch of a page, zeroing included.
  std::string measured{};       // When: utc_text().
  // Share of all cores' time that other programs, and others on a virtual machine's host, took meanwhile. nullopt:
  // unavailable. Above kPeaksOthersMax the figures may be too low.
  std::optional<double> others{};
};
inline constexpr double kPeaksOthersMax = 0.10;

// How peaks are measured.
struct PeaksMeter {
  std::function<void(std::int64_t n)> multiply;       // Two float32 matrices of n x n; what it throws passes.
  std::function<CpuLoad()> read_load = default_load;  // For tests: another machine's.

  static CpuLoad default_load() { return read_cpu_load(); }
};
// Some 0.5 s. The best of several repeats counts, as neighbours only slow down.
MachinePeaks measure_peaks(PeaksKey key, const PeaksMeter& meter);

// $XDG_CACHE_HOME/headrace/machine_peaks.json, or below ~/.cache; empty: there is no home folder. A relative
// XDG_CACHE_HOME counts as none, as its specification says.
std::filesystem::path peaks_file();

// As they were measured with this key before; else measured now, and kept. Where others were at work then and, in
// 0.15 s of looking, are not now, they are measured again, and of each figure the better one is kept. Nothing of the
// file raises: one that is missing, broken, somebody else's or of another format is taken for none, and one that cannot
// be written is measured again next time. 32 keys are kept, the newest. Thread-safe; of several processes one may lose
// what another kept.
MachinePeaks machine_peaks(const PeaksKey& key, const PeaksMeter& meter,
                           const std::filesystem::path& file = peaks_file());

}  // namespace headrace
