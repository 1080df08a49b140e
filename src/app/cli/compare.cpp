#include "app/cli/compare.h"

#include <headrace/report.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "app/cli/compare_arguments.h"
#include "app/cli/compare_arms.h"
#include "app/cli/compare_stages.h"
#include "core/base/build_info.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/exec/stop.h"
#include "data/store/file_name.h"
#include "insight/compare/compare_report.h"
#include "insight/compare/compared_machine.h"
#include "insight/compare/history.h"
#include "insight/compare/resampling.h"
#include "insight/compare/run_pairs.h"
#include "insight/compare/stored_runs.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using MachineFacts = std::vector<std::pair<std::string, std::string>>;

constexpr std::int64_t kResampledComparisons = 1000;
constexpr std::int64_t kResampledPairsMax = 200;  // The cost of a comparison grows with their square.

std::string in_one_line(const MachineFacts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += (text.empty() ? "" : ", ") + value;
  return text;
}

// For pages and pull requests, that others read.
std::string command_text(const Invocation& invocation) {
  std::string text;
  for (const std::string& word : invocation.argv) {
    text += (text.empty() ? "" : " ") + printable_name(without_credentials(word));
  }
  return text;
}

// Runs two arms in turns and keeps what their runs tell.
class PairRuns {
 public:
  PairRuns(const ComparedArm& old_arm, const ComparedArm& new_arm, const CompareArguments& arguments)
      : old_arm_(old_arm),
        new_arm_(new_arm),
        limit_s_(arguments.limit_s),
        seed_(arguments.seed != 0 ? arguments.seed : static_cast<std::uint64_t>(monotonic_ns())),
        pairs_(arguments.choices, arguments.false_discovery_rate) {}

  // One unmeasured run each: files are in memory from then on, and an arm that does not run is known at once. False: a
  // signal asked us to stop.
  bool warm_up() const { return run_arm(old_arm_.command, limit_s_) && run_arm(new_arm_.command, limit_s_); }

  // The next pair, in an order that a coin of its own decides. False: a signal asked us to stop.
  bool run() {
    const bool old_first = old_runs_first(seed_, pairs_.pairs());
    std::optional<RunFigures> first = run_arm((old_first ? old_arm_ : new_arm_).command, limit_s_);
    if (!first) return false;
    std::optional<RunFigures> second = run_arm((old_first ? new_arm_ : old_arm_).command, limit_s_);
    if (!second) return false;
    if (!old_first) std::swap(first, second);
    pairs_.add(*first, *second);
    old_runs_.push_back(std::move(*first));
    new_runs_.push_back(std::move(*second));
    return true;
  }

  const RunPairs& pairs() const { return pairs_; }
  const std::vector<RunFigures>& old_runs() const { return old_runs_; }
  const std::vector<RunFigures>& new_runs() const { return new_runs_; }

 private:
  const ComparedArm &old_arm_, &new_arm_;
  double limit_s_;
  std::uint64_t seed_;
  RunPairs pairs_;
  std::vector<RunFigures> old_runs_, new_runs_;
};

std::string progress_text(const RunPairs& pairs, std::int64_t pairs_max) {
  return fmt::format("Comparing: pair {} of at most {}", pairs.pairs() + 1, pairs_max);
}

// False: a signal asked us to stop.
bool run_pairs(PairRuns& runs, const CompareArguments& arguments, bool ends_when_settled, Console& console) {
  console.progress("Comparing: one run of each to warm up");
  if (!runs.warm_up()) return false;
  while (runs.pairs().pairs() < arguments.pairs) {
    console.progress(progress_text(runs.pairs(), arguments.pairs));
    if (!runs.run()) return false;
    if (ends_when_settled && runs.pairs().is_settled()) break;
  }
  console.clear_progress();
  return true;
}

int stopped(const PairRuns& runs, Console& console) {
  console.clear_progress();
  console.warning(fmt::format("stopped after {} pairs, without a verdict", runs.pairs().pairs()));
  return stop_exit_code(stop_signal());
}

CompareReport report_head(const Invocation& invocation, const ComparedArm& old_arm, const ComparedArm& new_arm) {
  CompareReport report{.old_label = old_arm.label, .new_label = new_arm.label, .verdict = {}};
  report.command = command_text(invocation);
  report.written = utc_text();
  report.machine = compared_machine();
  return report;
}

MetricDrift drift_of(const MetricRule& rule, const std::vector<HistoryPoint>& points, const Drift& drift) {
  return {.rule = rule,
          .first_label = points[drift.first].label,
          .last_label = points[drift.last].label,
          .largest_label = points[drift.largest].label,
          .builds = drift.last - drift.first,
          .drift = drift,
          .is_new = drift.last + 1 == points.size()};
}

// Adds the verdict to the history, and finds what has drifted in it.
void look_at_history(History& history, const HistoryKey& key, CompareReport& report) {
  history.add(key, report.old_label, report.new_label, report.written, report.verdict);
  for (const MetricVerdict& metric : report.verdict.metrics) {
    const std::vector<HistoryPoint> points = history.points(key, metric.rule.name);
    for (const Drift& drift : find_drifts(points, tolerated_effect(metric.rule))) {
      report.drifts.push_back(drift_of(metric.rule, points, drift));
    }
  }
}

// What somebody has seen of some runs alone would be missing where they are read.
void leave_out_unsteady(std::vector<RunFigures>& runs, const std::vector<RunFigures>& others) {
  std::set<std::string> unsteady;
  for (const std::vector<RunFigures>* all : {&std::as_const(runs), &others}) {
    for (const RunFigures& run : *all) {
      for (const std::string& name : run.seen_from_outside) unsteady.insert(name);
    }
  }
  const auto is_in_all = [](const std::vector<RunFigures>& all, const std::string& name) {
    return std::all_of(all.begin(), all.end(), [&](const RunFigures& run) { return run.metrics.contains(name); });
  };
  for (const std::string& name : unsteady) {
    if (is_in_all(runs, name) && is_in_all(others, name)) continue;
    for (RunFigures& run : runs) run.metrics.erase(name);
  }
}

void save_runs(const CompareArguments& arguments, const CompareReport& report, const std::string& config,
               const PairRuns& runs) {
  std::error_code error;
  fs::create_directories(arguments.save, error);
  if (error) fail(ErrorCode::io, "compare: cannot make the folder {}: {}", arguments.save.string(), error.message());
  const BuildInfo& build = build_info();
  StoredRuns stored{.label = report.old_label,
                    .written = report.written,
                    .build = fmt::format("{} ({})", build.version, build.commit),
                    .config = config,
                    .machine = report.machine,
                    .runs = runs.old_runs()};
  leave_out_unsteady(stored.runs, runs.new_runs());
  write_stored_runs(arguments.save / "old.json", stored);
  stored.label = report.new_label;
  stored.runs = runs.new_runs();
  leave_out_unsteady(stored.runs, runs.old_runs());
  write_stored_runs(arguments.save / "new.json", stored);
}

void write_for_others(const CompareArguments& arguments, const CompareReport& report) {
  if (!arguments.junit.empty()) write_file(arguments.junit, compare_junit(report));
  if (!arguments.markdown.empty()) write_file(arguments.markdown, compare_markdown(report));
  if (!arguments.html.empty()) write_file(arguments.html, compare_html(report));
}

int tell(const CompareArguments& arguments, const CompareReport& report, Console& console) {
  write_for_others(arguments, report);
  console.json(compare_json(report));
  console.result(compare_text(report));
  return report.is_failure() ? kExitVerdict : kExitDone;
}

int compare_stored(const Invocation& invocation, const ComparedArm& old_arm, const ComparedArm& new_arm,
                   Console& console) {
  const CompareArguments& arguments = invocation.compare;
  if (!arguments.history.empty() || !arguments.save.empty()) {
    fail(ErrorCode::invalid_argument,
         "compare: --{} is for pairs of runs, and {} and {} are stored: levels of other times are no history",
         arguments.history.empty() ? "save" : "history", old_arm.label, new_arm.label);
  }
  const StoredRuns old_runs = read_stored_runs(old_arm.path), new_runs = read_stored_runs(new_arm.path);
  CompareReport report = report_head(invocation, old_arm, new_arm);
  report.machine = old_runs.machine;
  report.verdict = judge_stored(old_runs, new_runs, arguments.choices);
  return tell(arguments, report, console);
}

// Which part of a step has changed, where the runs did not tell. False: a signal asked us to stop.
bool explain_change(const ComparedArm& old_arm, const ComparedArm& new_arm, const CompareArguments& arguments,
                    CompareVerdict& verdict, Console& console) {
  if (!needs_stages(old_arm, new_arm, verdict)) return true;
  console.progress("Comparing: one further pair, by headrace profile, for the parts of a step");
  const bool goes_on = find_stages(old_arm, new_arm, arguments.limit_s, verdict);
  console.clear_progress();
  return goes_on;
}

int compare_running(const Invocation& invocation, ComparedArm old_arm, ComparedArm new_arm, Console& console) {
  const CompareArguments& arguments = invocation.compare;
  std::optional<History> history;  // A file that is none is refused before anything runs.
  if (!arguments.history.empty()) history.emplace(arguments.history);
  PairRuns runs(old_arm, new_arm, arguments);
  console.progress("Comparing: preparing OLD and NEW");
  const auto old_folder = prepare(old_arm, arguments);
  const auto new_folder = old_folder ? prepare(new_arm, arguments) : std::nullopt;
  if (!new_folder || !run_pairs(runs, arguments, /*ends_when_settled=*/true, console)) return stopped(runs, console);
  CompareReport report = report_head(invocation, old_arm, new_arm);
  report.verdict = runs.pairs().verdict();
  report.pairs = recorded_pairs(runs.pairs().metrics());
  const bool goes_on = explain_change(old_arm, new_arm, arguments, report.verdict, console);
  const std::string config = config_of(new_arm, arguments);
  if (history) look_at_history(*history, {config, in_one_line(report.machine)}, report);
  if (!arguments.save.empty()) save_runs(arguments, report, config, runs);
  const int status = tell(arguments, report, console);
  return goes_on ? status : stop_exit_code(stop_signal());
}

int compare_arms(const Invocation& invocation, Console& console) {
  const CompareArguments& arguments = invocation.compare;
  ComparedArm old_arm = arm_of("OLD", arguments.old_arm, arguments);
  ComparedArm new_arm = arm_of("NEW", arguments.new_arm, arguments);
  if ((old_arm.kind == ArmKind::stored) != (new_arm.kind == ArmKind::stored)) {
    fail(ErrorCode::invalid_argument, "compare: OLD is {} and NEW is {}; wanted both stored, or both to be run",
         to_string(old_arm.kind), to_string(new_arm.kind));
  }
  const bool are_stored = old_arm.kind == ArmKind::stored;
  if (invocation.dry_run) {
    console.info(fmt::format("dry run: would compare {} ({}) with {} ({}){}; nothing was run", old_arm.label,
                             to_string(old_arm.kind), new_arm.label, to_string(new_arm.kind),
                             are_stored ? "" : fmt::format(" in at most {} pairs", arguments.pairs)));
    return kExitDone;
  }
  if (are_stored) return compare_stored(invocation, old_arm, new_arm, console);
  return compare_running(invocation, std::move(old_arm), std::move(new_arm), console);
}

struct FalseAlarms {
  Resampled none, three_percent, five_percent;
  double share() const {
    return static_cast<double>(none.regressed + none.improved) / static_cast<double>(none.comparisons);
  }
};

FalseAlarms false_alarms(const RunPairs& pairs, const CompareArguments& arguments) {
  if (pairs.metrics().empty()) {
    fail(ErrorCode::invalid_argument, "compare: OLD tells no metric in every run, so that --aa has nothing to judge");
  }
  std::vector<MetricRule> rules;
  for (const PairedMetric& metric : pairs.metrics()) rules.push_back(metric.rule());
  const auto resampled = [&](double slowdown) {
    return resample(recorded_pairs(pairs.metrics()), rules,
                    {.comparisons = kResampledComparisons,
                     .pairs_max = std::min(arguments.pairs, kResampledPairsMax),
                     .slowdown = slowdown,
                     .false_discovery_rate = arguments.false_discovery_rate});
  };
  return {resampled(0), resampled(0.03), resampled(0.05)};
}

std::string aa_text(const ComparedArm& arm, const CompareVerdict& verdict, const FalseAlarms& alarms) {
  std::string text = fmt::format("{} against itself, {} pairs\n\n", arm.label, verdict.pairs);
  for (const MetricVerdict& metric : verdict.metrics) {
    text += fmt::format("{:<20} pairs scatter by {:.2g}{}, {}\n", metric.rule.name, metric.scatter,
                        metric.rule.is_absolute ? "" : " (of a ratio)", to_string(metric.change));
  }
  const auto of_thousand = [](const Resampled& found) {
    return fmt::format("{} of {} (after {:.0f} pairs)", found.regressed, found.comparisons, found.pairs);
  };
  return text + fmt::format("\nfalse alarms   {} of {}\n3 % slower     found in {}\n5 % slower     found in {}\n",
                            alarms.none.regressed + alarms.none.improved, alarms.none.comparisons,
                            of_thousand(alarms.three_percent), of_thousand(alarms.five_percent));
}

Json resampled_json(const Resampled& resampled) {
  return {{"comparisons", resampled.comparisons},
          {"regressed", resampled.regressed},
          {"improved", resampled.improved},
          {"pairs", resampled.pairs}};
}

int compare_with_itself(const Invocation& invocation, Console& console) {
  const CompareArguments& arguments = invocation.compare;
  ComparedArm arm = arm_of("OLD", arguments.old_arm, arguments);
  if (arm.kind == ArmKind::stored) {
    fail(ErrorCode::invalid_argument,
         "compare: --aa runs OLD against itself, and {} is stored; wanted something to run", arm.label);
  }
  if (invocation.dry_run) {
    console.info(fmt::format("dry run: would run {} in {} pairs; nothing was run", arm.label, arguments.pairs));
    return kExitDone;
  }
  PairRuns runs(arm, arm, arguments);
  const auto folder = prepare(arm, arguments);
  if (!folder || !run_pairs(runs, arguments, /*ends_when_settled=*/false, console)) return stopped(runs, console);
  CompareReport report = report_head(invocation, arm, arm);
  report.verdict = runs.pairs().verdict();
  report.pairs = recorded_pairs(runs.pairs().metrics());
  const FalseAlarms alarms = false_alarms(runs.pairs(), arguments);
  Json document = compare_json(report);
  document["format"] = "headrace-compare-aa";
  document["no_change"] = resampled_json(alarms.none);
  document["3_percent_slower"] = resampled_json(alarms.three_percent);
  document["5_percent_slower"] = resampled_json(alarms.five_percent);
  write_for_others(arguments, report);
  console.json(document);
  console.result(aa_text(arm, report.verdict, alarms));
  return alarms.share() > arguments.false_discovery_rate ? kExitVerdict : kExitDone;
}

// Somebody's pull request must not look as if it had passed.
void tell_failure(const CompareArguments& arguments, const std::string& reason) {
  const std::string old_label = printable_name(arguments.old_arm), new_label = printable_name(arguments.new_arm);
  if (!arguments.junit.empty()) write_file(arguments.junit, failed_junit(old_label, new_label, reason));
  if (!arguments.markdown.empty()) write_file(arguments.markdown, failed_markdown(old_label, new_label, reason));
  if (!arguments.html.empty()) write_file(arguments.html, failed_html(old_label, new_label, reason));
}

}  // namespace

int run_compare(const Invocation& invocation, Console& console) {
  // What is killed leaves this, and no file of an earlier comparison.
  if (!invocation.dry_run) tell_failure(invocation.compare, "the comparison has not come to its end");
  try {
    return invocation.compare.aa ? compare_with_itself(invocation, console) : compare_arms(invocation, console);
  } catch (const std::exception& error) {
    console.clear_progress();
    tell_failure(invocation.compare, error.what());
    throw;
  }
}

}  // namespace headrace
