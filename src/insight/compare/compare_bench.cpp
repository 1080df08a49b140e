// How often headrace compare alarms for nothing and how often it finds 3 %: 1,000 and 500 comparisons of drawn pairs,
// or of those in files: that headrace compare --json wrote, or make bench NAME=compare ARGS='--record FILE'. Exit
// status 3: more than 2 % alarms, or less than 90 % found, where pairs scatter by 4 % or less.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/run_program.h"
#include "insight/compare/drawn_pairs.h"
#include "insight/compare/resampling.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kSame = 1000, kSlower = 500;
constexpr double kSlowdown = 0.03, kScatterOfBar = 0.04;
constexpr double kAlarmsMax = 0.02, kFoundMin = 0.90;
constexpr std::int64_t kRecorded = 200;

struct Recording {
  std::string name;
  std::vector<MetricRule> rules;
  std::vector<PairEffects> pairs;
  bool has_bar = true;
};

std::vector<MetricRule> rules(std::size_t count) {
  const char* names[] = {"step_p50_s", "step_p95_s", "step_p99_s", "samples_per_s", "peak_memory_bytes", "loss"};
  std::vector<MetricRule> rules;
  for (std::size_t i = 0; i < count; ++i) rules.push_back(rule_of(names[i], {}));
  return rules;
}

std::vector<Recording> drawn() {
  std::vector<Recording> recordings;
  for (const double scatter : {0.01, 0.02, 0.04, 0.08}) {
    for (const bool heavy_tails : {false, true}) {
      for (const std::size_t metrics : {1, 3, 6}) {
        recordings.push_back(
            {fmt::format("{:.0f} %, {}, {} metrics", scatter * 100, heavy_tails ? "t(3)" : "normal", metrics),
             rules(metrics), drawn_pairs(kRecorded, metrics, scatter, heavy_tails, 1), scatter <= kScatterOfBar});
      }
    }
  }
  return recordings;
}

Recording recorded(const std::string& path) {
  const auto document = Json::parse(read_file(path, 1LL << 28), nullptr, /*allow_exceptions=*/false);
  const auto told = document.is_object() ? document.value("recorded", Json()) : Json();
  if (!told.is_object() || told.value("effects", Json()).empty()) {
    fail(ErrorCode::corrupt_data, "{} has no recorded pairs; wanted a file of headrace compare --json", path);
  }
  Recording recording{.name = {}, .rules = {}, .pairs = {}};
  for (const auto& name : told.at("metrics")) recording.rules.push_back(rule_of(name.get<std::string>(), {}));
  for (const auto& pair : told.at("effects")) recording.pairs.push_back(pair.get<PairEffects>());
  double largest = 0;
  for (std::size_t i = 0; i < recording.rules.size(); ++i) {
    PairedMetric metric(recording.rules[i]);
    for (const PairEffects& pair : recording.pairs) metric.add_effect(pair.at(i));
    largest = std::max(largest, metric.scatter());
  }
  recording.has_bar = largest <= kScatterOfBar;
  recording.name = fmt::format("{:.1f} %, {} recorded pairs{}", largest * 100, recording.pairs.size(),
                               recording.has_bar ? "" : ", no bar");
  return recording;
}

bool print_and_judge(const Recording& recording) {
  const Resampled same = resample(recording.pairs, recording.rules, {.comparisons = kSame});
  const Resampled slower = resample(recording.pairs, recording.rules, {.comparisons = kSlower, .slowdown = kSlowdown});
  const double alarms = static_cast<double>(same.regressed + same.improved) / static_cast<double>(kSame);
  const double found = static_cast<double>(slower.regressed) / static_cast<double>(kSlower);
  const bool is_missed = recording.has_bar && (alarms > kAlarmsMax || found < kFoundMin);
  std::printf("%-32s %7.2f %% %9.1f %9.1f %% %9.1f %s\n", recording.name.c_str(), alarms * 100, same.pairs, found * 100,
              slower.pairs, is_missed ? "MISSED" : "");
  std::fflush(stdout);
  return !is_missed;
}

int run(const std::vector<std::string>& words) {
  std::vector<Recording> recordings;
  for (const std::string& path : words) recordings.push_back(recorded(path));
  if (words.empty()) recordings = drawn();
  std::printf("%-32s %9s %9s %11s %9s\n", "pairs scatter by", "alarms", "pairs", "+3 % found", "pairs");
  bool holds = true;
  for (const Recording& recording : recordings) holds = print_and_judge(recording) && holds;
  return holds ? 0 : 3;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  int status = 1;
  const int failed = headrace::run_program(
      argc, argv, [&](const std::vector<std::string>& words) { status = headrace::run(words); }, "compare_bench");
  return failed != 0 ? failed : status;
}
