#include "insight/compare/stored_runs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "insight/compare/output_guard.h"
#include "insight/tune/statistics.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kBytesMax = 1LL << 28;
constexpr const char* kFormat = "headrace-measurements";
constexpr const char* kDocuments[] = {"result.json", "profile.json"};

// The document of a run's folder; empty: it is none.
fs::path document_of(const fs::path& folder) {
  for (const char* name : kDocuments) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) return folder / name;
  }
  return {};
}

// Folders of runs below `folder`, by name. Links are others' names for the same ones (latest).
std::vector<fs::path> folders_below(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->is_symlink() && entry->is_directory() && !document_of(entry->path()).empty()) {
      found.push_back(entry->path());
    }
  }
  if (error) fail(ErrorCode::io, "compare: cannot list {}: {}", folder.string(), error.message());
  std::sort(found.begin(), found.end());
  return found;
}

std::string text_of(const Json& document, const char* key, const std::string& source) {
  if (document.contains(key) && document[key].is_string()) return document[key].get<std::string>();
  fail(ErrorCode::corrupt_data, "compare: {} has no text {}", source, key);
}

StoredRuns measurements(const Json& document, const std::string& source) {
  check_version(document, source);
  StoredRuns stored{.label = text_of(document, "label", source),
                    .written = text_of(document, "written", source),
                    .build = text_of(document, "build", source),
                    .config = text_of(document, "config", source)};
  const auto is_there = [&](const char* key, bool is_list) {
    return document.contains(key) && (is_list ? document[key].is_array() : document[key].is_object());
  };
  if (!is_there("machine", false) || !is_there("runs", true))
    fail(ErrorCode::corrupt_data, "compare: {} has no machine or runs", source);
  const Json &machine = document["machine"], &runs = document["runs"];
  for (const auto& [name, value] : machine.items())
    stored.machine.emplace_back(name, text_of(machine, name.c_str(), source));
  for (const Json& run : runs) stored.runs.push_back(figures_from_json(run, source));
  return stored;
}

void add_run(RunFigures figures, const std::string& source, StoredRuns& stored) {
  if (!stored.runs.empty() && figures.machine != stored.machine) {
    fail(ErrorCode::corrupt_data, "compare: {} was measured on another machine than the run before it", source);
  }
  stored.machine = figures.machine;
  stored.runs.push_back(std::move(figures));
}

StoredRuns read_file_of_runs(const fs::path& path) {
  const std::string text = read_file(path, kBytesMax), source = path.string();
  StoredRuns stored{.label = source};
  if (path.extension() == ".jsonl") {
    add_run(figures_of_lines(text, source), source, stored);
    return stored;
  }
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_object() && document.contains("format") && document["format"] == kFormat) {
    return measurements(document, source);
  }
  add_run(figures_of_document(document, source), source, stored);
  return stored;
}

std::string machine_text(const StoredRuns& stored) {
  std::string text;
  for (const auto& [name, value] : stored.machine) text += (text.empty() ? "" : ", ") + value;
  return text.empty() ? "a machine that is not told" : text;
}

void check_arms(const StoredRuns& old_runs, const StoredRuns& new_runs) {
  for (const StoredRuns* arm : {&old_runs, &new_runs}) {
    if (arm->runs.size() >= kStoredRunsMin) continue;
    fail(ErrorCode::invalid_argument,
         "compare: {} holds {} run{}; a verdict on stored runs takes {} of each, or let compare run the pairs "
         "(recipes, scripts, programs, commits)",
         arm->label, arm->runs.size(), arm->runs.size() == 1 ? "" : "s", kStoredRunsMin);
  }
  if (old_runs.machine != new_runs.machine) {
    fail(ErrorCode::invalid_argument, "compare: OLD was measured on {}, NEW on {}; wanted one machine",
         machine_text(old_runs), machine_text(new_runs));
  }
}

// The values of a metric in all runs; empty where a run lacks it.
std::vector<double> values_of(const StoredRuns& stored, const std::string& name) {
  std::vector<double> values;
  for (const RunFigures& run : stored.runs) {
    const auto found = run.metrics.find(name);
    if (found == run.metrics.end()) return {};
    values.push_back(found->second);
  }
  return values;
}

// Hodges and Lehmann's shift, with the interval of Mann and Whitney's statistic, taken as normal.
Estimate shift(const MetricRule& rule, const std::vector<double>& old_values, const std::vector<double>& new_values,
               double tail) {
  std::vector<double> effects;
  for (const double before : old_values) {
    for (const double after : new_values) effects.push_back(effect_of(rule, before, after));
  }
  std::sort(effects.begin(), effects.end());
  constexpr int kNormalDegrees = 1000;
  const auto old_count = static_cast<double>(old_values.size()), new_count = static_cast<double>(new_values.size());
  const double deviation = std::sqrt(old_count * new_count * (old_count + new_count + 1) / 12);
  const double beyond = old_count * new_count / 2 - student_quantile(kNormalDegrees, tail) * deviation;
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (beyond < 1) return {median(effects), -infinity, infinity};
  const auto cut = static_cast<std::size_t>(beyond);
  return {median(effects), effects[cut - 1], effects[effects.size() - cut]};
}

MetricChange change_within(const MetricRule& rule, const Estimate& effect) {
  const double tolerated = tolerated_effect(rule);
  if (effect.low > tolerated) return MetricChange::regressed;
  if (effect.high < -tolerated) return MetricChange::improved;
  return effect.low > -tolerated && effect.high < tolerated ? MetricChange::equivalent : MetricChange::inconclusive;
}

std::set<std::string> names_of(const StoredRuns& old_runs, const MetricChoices& choices) {
  if (!choices.only.empty()) return choices.only;
  std::set<std::string> names;
  for (const RunFigures& run : old_runs.runs) {
    for (const auto& [name, value] : run.metrics) names.insert(name);
  }
  return names;
}

// Of a metric that a run of the two arms cannot have; empty: all may have it.
std::string why_not_compared(const std::string& metric, const StoredRuns& old_runs, const StoredRuns& new_runs) {
  std::string why;
  for (std::size_t i = 0; why.empty() && i < old_runs.runs.size(); ++i) {
    why = why_not_compared(metric, old_runs.runs[i], {});
  }
  for (std::size_t i = 0; why.empty() && i < new_runs.runs.size(); ++i) {
    why = why_not_compared(metric, {}, new_runs.runs[i]);
  }
  return why;
}

}  // namespace

void write_stored_runs(const fs::path& path, const StoredRuns& stored) {
  Json document{{"format", kFormat},         {"version", 1},          {"label", stored.label},
                {"written", stored.written}, {"build", stored.build}, {"config", stored.config},
                {"machine", Json::object()}, {"runs", Json::array()}};
  for (const auto& [name, value] : stored.machine) document["machine"][name] = value;
  for (const RunFigures& run : stored.runs) document["runs"].push_back(to_json(run));
  write_file(path, document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

bool is_stored(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return !document_of(path).empty() || !folders_below(path).empty();
  return fs::is_regular_file(path, ignored) && (path.extension() == ".json" || path.extension() == ".jsonl");
}

StoredRuns read_stored_runs(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return read_file_of_runs(path);
  if (const fs::path document = document_of(path); !document.empty()) return read_file_of_runs(document);
  StoredRuns stored{.label = path.string()};
  for (const fs::path& folder : folders_below(path)) {
    StoredRuns one = read_file_of_runs(document_of(folder));
    for (RunFigures& run : one.runs) add_run(std::move(run), folder.string(), stored);
  }
  if (stored.runs.empty())
    fail(ErrorCode::not_found, "compare: no run's result.json or profile.json in {}", path.string());
  return stored;
}

CompareVerdict judge_stored(const StoredRuns& old_runs, const StoredRuns& new_runs, const MetricChoices& choices) {
  check_choices(choices);
  check_arms(old_runs, new_runs);
  const std::set<std::string> names = names_of(old_runs, choices);
  CompareVerdict verdict;
  std::size_t told = 0;
  for (const std::string& name : names) {
    const MetricRule rule = rule_of(name, choices);
    const std::vector<double> old_values = values_of(old_runs, name), new_values = values_of(new_runs, name);
    if (old_values.empty() || new_values.empty()) {
      if (const std::string why = why_not_compared(name, old_runs, new_runs); !why.empty()) {
        verdict.remarks.push_back(why);
        continue;
      }
      verdict.metrics.push_back({.rule = rule, .change = MetricChange::missing});
      continue;
    }
    ++told;
    const Estimate effect = shift(rule, old_values, new_values, kTailError / static_cast<double>(names.size()));
    verdict.metrics.push_back(
        verdict_from(rule, change_within(rule, effect), median(old_values), median(new_values), effect));
  }
  if (told == 0) {
    fail(ErrorCode::invalid_argument, "compare: {} and {} have no metric in common{}{}", old_runs.label, new_runs.label,
         verdict.remarks.empty() ? "" : "; ", verdict.remarks.empty() ? "" : verdict.remarks.front());
  }
  OutputGuard outputs;
  for (std::size_t i = 0; i < std::min(old_runs.runs.size(), new_runs.runs.size()); ++i) {
    outputs.add(old_runs.runs[i].outputs, new_runs.runs[i].outputs);
  }
  outputs.tell(verdict);
  if (old_runs.machine.empty()) {
    verdict.remarks.push_back("the runs do not tell their machine: nobody knows whether it was the same one");
  }
  verdict.remarks.push_back(
      "weak: these runs were not taken in turns, so that whatever else changed between them counts as a change (of two "
      "blocks of runs of one build, rank tests call 15 to 54 % different); let compare run the pairs itself for a "
      "verdict to act on");
  return verdict;
}

}  // namespace headrace
