// What exporting costs: spans a second and bytes a span of each form, in memory and as a file, and scalars a second of
// the TensorBoard writer. Medians over repeats with their spread.
#include <headrace/trace_export.h>

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/temporary_folder.h"
#include "insight/export/perfetto.h"
#include "insight/export/tensorboard.h"
#include "quantile.h"

namespace headrace {
namespace {

constexpr int kRepeats = 11;
constexpr std::int64_t kSpans = 1'000'000;
constexpr std::int64_t kScalars = 1'000'000;

// Steps of four parts on one thread and the loading of two others: 1 to 900 us from one event to the next, as in the
// demo.
TraceRecord steps(bool with_values) {
  TraceRecord record;
  record.names = {
      {"step", "step"}, {"data_wait", "step"}, {"forward", "step"}, {"backward", "step"}, {"load_chunk", "work"}};
  record.threads = {"main", "loader 0", "loader 1"};
  constexpr std::int64_t kStepNs = 2'000'000;
  std::int64_t now = 0;
  for (std::int64_t step = 0; std::ssize(record.events) < kSpans; ++step, now += kStepNs) {
    const std::int64_t value = with_values ? step : 0;
    record.events.push_back({0, 0, now, now + 1'990'000, value});
    record.events.push_back({1, 0, now + 1'000, now + 90'000, 0});
    record.events.push_back({4, 1, now + 1'500, now + 900'000, value});
    record.events.push_back({4, 2, now + 50'000, now + 1'000'000, value});
    record.events.push_back({2, 0, now + 91'000, now + 900'000, 0});
    record.events.push_back({3, 0, now + 901'000, now + 1'800'000, 0});
  }
  record.duration_ns = now;
  return record;
}

struct Rate {
  std::vector<double> per_second;
  double bytes = 0;  // Of one.
};

void print(const std::string& name, const Rate& rate) {
  fmt::print("{:<44} {:7.2f} M/s   (5 % {:.2f}, 95 % {:.2f})   {:6.1f} bytes each\n", name,
             quantile(rate.per_second, 0.5) * 1e-6, quantile(rate.per_second, 0.05) * 1e-6,
             quantile(rate.per_second, 0.95) * 1e-6, rate.bytes);
}

// `once` returns the bytes that it wrote.
Rate measure(std::int64_t count, const std::function<std::int64_t()>& once) {
  Rate rate;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const std::int64_t begin = monotonic_ns();
    rate.bytes = static_cast<double>(once()) / static_cast<double>(count);
    rate.per_second.push_back(static_cast<double>(count) / seconds_since(begin));
  }
  return rate;
}

void run() {
  const TemporaryFolder folder;
  for (const bool with_values : {false, true}) {
    const TraceRecord record = steps(with_values);
    const auto count = static_cast<std::int64_t>(record.events.size());
    fmt::print("{} spans{}, {} repeats\n", count, with_values ? " of which two in three have a value" : "", kRepeats);
    print("perfetto, in memory", measure(count, [&] {
            std::int64_t bytes = 0;
            encode_perfetto(record, {}, [&](std::span<const std::byte> piece) { bytes += std::ssize(piece); });
            return bytes;
          }));
    for (const TraceForm form :
         {TraceForm::perfetto, TraceForm::chrome, TraceForm::folded, TraceForm::csv, TraceForm::jsonl}) {
      print(fmt::format("{}, a file with its fsync", to_string(form)), measure(count, [&] {
              std::int64_t bytes = 0;
              for (const auto& path : export_trace(record, folder.path() / "trace", form)) {
                bytes += static_cast<std::int64_t>(std::filesystem::file_size(path));
              }
              return bytes;
            }));
    }
  }
  print("TensorBoard scalars, flushed at the end", measure(kScalars, [&] {
          TensorBoardWriter writer{folder.path() / "runs"};
          for (std::int64_t step = 0; step < kScalars; ++step) {
            writer.add_scalar("train/samples_per_second", static_cast<double>(step), {step * 1'000'000, step});
          }
          writer.flush();
          return static_cast<std::int64_t>(std::filesystem::file_size(writer.path()));
        }));
}

}  // namespace
}  // namespace headrace

int main() {
  headrace::run();
}
