// Traces that torch.profiler wrote into a run's folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct TorchTrace {
  std::vector<double> step_s;  // Of its ProfilerStep spans, in the file's order.
  bool is_whole = true;        // False: it is no whole JSON object, as one that was cut off.
  bool is_read = true;         // False: it is larger than kTorchTraceMax, and nothing but its head was looked at.
};
inline constexpr std::int64_t kTorchTraceMax = 256LL << 20;

// nullopt: no file that can be read and whose first 64 KiB are those of a trace by Kineto, which begins with
// "schemaVersion" and "deviceProperties" (libkineto/src/output_json.cpp). Reads an event at a time: memory grows
// with the longest text in it alone, and 100 MB take a second or two.
std::optional<TorchTrace> read_torch_trace(const std::filesystem::path& path);
// "3 steps, 12.1 ms in the middle, 14.0 ms at most", of a whole one.
std::string torch_trace_text(const TorchTrace& trace);

}  // namespace headrace
