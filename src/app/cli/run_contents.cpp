#include "app/cli/run_contents.h"

#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/options/train.h>
#include <headrace/report.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "app/cli/console.h"
#include "core/base/middle.h"
#include "core/exec/cores.h"
#include "core/memory/trend.h"
#include "data/source/held_out.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kUnavailable = "unavailable";
constexpr std::size_t kShown = 5;

// The value at a path of keys, or null where the document has none.
const Json& at(const Json& document, std::initializer_list<const char*> path) {
  static const Json nothing;
  const Json* place = &document;
  for (const char* key : path) {
    if (!place->is_object() || !place->contains(key)) return nothing;
    place = &(*place)[key];
  }
  return *place;
}

std::optional<double> number(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::string text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string{};
}

// The numbers of a list; empty where one of them is none.
std::vector<double> numbers(const Json& list) {
  std::vector<double> values;
  if (!list.is_array()) return values;
  for (const Json& value : list) {
    if (!value.is_number()) return {};
    values.push_back(value.get<double>());
  }
  return values;
}

std::string megabytes(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.0f} MB", bytes * 1e-6) : fmt::format("{:.2f} GB", bytes * 1e-9);
}

// Of training, in whichever document the verb has it.
const Json& training(const RunContents& run) {
  return at(run.result.is_object() ? run.result : run.ledger, {"training"});
}

// The finished ones; of a run that was killed, those that its newest checkpoint knows.
const Json& epochs(const RunContents& run) {
  static const Json none = Json::array();
  for (const Json* document : {&training(run), &run.checkpoint_history}) {
    const Json& list = at(*document, {"epochs"});
    if (list.is_array()) return list;
  }
  return none;
}

// Of a run that has ended, its result; an empty object where no document has one.
const Json& result(const RunContents& run) {
  static const Json none = Json::object();
  for (const Json* document : {&training(run), &run.checkpoint_history}) {
    const Json& found = at(*document, {"result"});
    if (found.is_object()) return found;
  }
  return none;
}

// Of the result, or of the last epoch that has it, as earlier versions and runs that were killed have it.
std::string accuracy_on(const RunContents& run, const std::string& split) {
  const std::string key = split + "_accuracy", top5_key = split + "_top5_accuracy";
  const Json* source = &result(run);
  if (!number(at(*source, {key.c_str()})) && !epochs(run).empty()) source = &epochs(run).back();
  const auto accuracy = number(at(*source, {key.c_str()}));
  return accuracy ? accuracy_text(*accuracy, number(at(*source, {top5_key.c_str()}))) : "";
}

const Json& memory_series(const RunContents& run) {
  for (const Json* document : {&run.result, &run.ledger, &run.profile}) {
    if (document->is_object()) return at(*document, {"memory"});
  }
  return at(run.result, {});
}

class Contents {
 public:
  Contents(const RunContents& run, const Machine& here) : run_(run), here_(here) {}

  std::vector<Finding> findings() {
    look_at_end();
    look_at_losses();
    look_at_corrupt_samples();
    look_at_steps();
    look_at_epochs();
    look_at_memory_trend();
    look_at_memory_limit();
    for (const Json& finding : at(run_.profile, {"diagnosis", "findings"})) {
      add(text(at(finding, {"code"})), text(at(finding, {"sentence"})), text(at(finding, {"advice"})));
    }
    look_at_data();
    look_at_checkpoint();
    return std::move(findings_);
  }

 private:
  void add(std::string code, std::string sentence, std::string advice) {
    findings_.push_back({std::move(code), std::move(sentence), std::move(advice)});
  }

  void look_at_end() {
    const std::size_t last_line = run_.log.find_last_not_of('\n');
    const std::size_t begin = last_line == std::string::npos ? last_line : run_.log.rfind('\n', last_line);
    const std::string line = begin == std::string::npos ? run_.log : run_.log.substr(begin + 1);
    const std::string mark = "headrace: error: ";
    if (const std::size_t at_mark = line.find(mark); at_mark != std::string::npos) {
      std::string what = line.substr(at_mark + mark.size());
      while (!what.empty() && what.back() == '\n') what.pop_back();
      add("failed", "the run ended with an error: " + what, "Remove the cause. " + how_to_go_on());
    }
    const auto signal = number(at(training(run_), {"stopped_by"})).value_or(0);
    if (signal == 0) return;
    add("stopped",
        fmt::format("the run was stopped by signal {:.0f} after {} of {} epochs", signal, epochs(run_).size(),
                    run_.recipe ? std::to_string(run_.recipe->train.epochs) : kUnavailable),
        how_to_go_on());
  }

  std::string how_to_go_on() const {
    const std::string verb = run_.verb();
    if (verb == "train") return "Go on with train --resume.";
    return verb == "tune" ? "Start it again; ledger.json holds what was decided." : "Start it again.";
  }

  void look_at_losses() {
    for (const Json& epoch : epochs(run_)) {
      for (const char* name : {"loss", "val_loss", "test_loss"}) {
        if (!epoch.is_object() || !epoch.contains(name) || !epoch[name].is_null()) continue;
        add("loss_not_finite", fmt::format("{} of epoch {} is not finite", name, at(epoch, {"epoch"}).dump()),
            "Lower optimizer.lr, set train.max_grad_norm, or train in fp32.");
      }
    }
    const Json& end = result(run_);
    if (end.contains("test_loss") && end["test_loss"].is_null()) {
      add("loss_not_finite", "test_loss of the result is not finite",
          "Lower optimizer.lr, set train.max_grad_norm, or train in fp32.");
    }
  }

  void look_at_corrupt_samples() {
    for (const Json* document : {&run_.result, &run_.ledger, &run_.profile}) {
      const Json& samples = at(*document, {"corrupt_samples", "samples"});
      if (!samples.is_array() || samples.empty()) continue;
      std::string names;
      for (std::size_t i = 0; i < std::min(samples.size(), kShown); ++i) {
        names += (i == 0 ? "" : "; ") + text(at(samples[i], {"reason"}));
      }
      if (samples.size() > kShown) names += fmt::format("; and {} more", samples.size() - kShown);
      add("corrupt_samples",
          fmt::format("{} {} could not be read (data.on_corrupt = {}): {}", samples.size(),
                      samples.size() == 1 ? "sample" : "samples",
                      text(at(*document, {"corrupt_samples", "on_corrupt"})), names),
          "Repair or remove the files.");
    }
  }

  void look_at_steps() {
    constexpr double kSlow = 2, kShareMin = 0.05;  // Of the median step; of the whole time.
    const std::vector<double> steps = numbers(at(run_.profile, {"time_split", "step_s"}));
    if (steps.size() < 10) return;
    const double usual = middle_of(steps);
    double lost = 0, all = 0;
    std::size_t slow = 0;
    for (const double step : steps) {
      all += step;
      if (step <= kSlow * usual) continue;
      ++slow;
      lost += step - usual;
    }
    if (!(lost > kShareMin * all)) return;
    const auto worst = std::max_element(steps.begin(), steps.end());
    add("slow_steps",
        fmt::format("{} of {} steps took more than twice the median of {:.1f} ms and cost {:.0f} % of the time; the "
                    "longest, step {}, took {:.1f} ms",
                    slow, steps.size(), usual * 1e3, 100 * lost / all, worst - steps.begin() + 1, *worst * 1e3),
        "Look at trace.json there: a wait for data, or other work on the machine.");
  }

  void look_at_epochs() {
    constexpr double kSlow = 0.8, kShareMin = 0.05;  // Of the median speed; of the time of all epochs.
    std::vector<double> speeds;
    for (const Json& epoch : epochs(run_)) {
      if (const auto speed = number(at(epoch, {"samples_per_second"})); speed && *speed > 0) speeds.push_back(*speed);
    }
    if (speeds.size() < 3 || speeds.size() != epochs(run_).size()) return;
    const double usual = middle_of(speeds);
    double lost = 0, all = 0;  // In usual epochs.
    std::size_t slow = 0;
    for (const double speed : speeds) {
      all += usual / speed;
      if (speed >= kSlow * usual) continue;
      ++slow;
      lost += usual / speed - 1;
    }
    if (!(lost > kShareMin * all)) return;
    const auto worst = std::min_element(speeds.begin(), speeds.end());
    add("slow_epochs",
        fmt::format("{} of {} epochs ran below 80 % of the median speed of {:.0f} samples/s and cost {:.0f} % of the "
                    "time; the slowest, epoch {}, ran at {:.0f}",
                    slow, speeds.size(), usual, 100 * lost / all, worst - speeds.begin() + 1, *worst),
        "Other work ran on the machine, or the disk was slow; a first epoch may have filled caches.");
  }

  // Only where one thing was done over and over: a tuner's trials differ.
  void look_at_memory_trend() {
    constexpr double kSecondsMin = 60, kGrowthMin = 0.02;
    constexpr std::size_t kWindows = 16;
    const std::vector<double> resident = numbers(at(run_.result, {"memory", "resident"}));
    const std::vector<double> seconds = numbers(at(run_.result, {"memory", "at_s"}));
    if (resident.size() < 2 * kWindows || seconds.empty() || seconds.back() < kSecondsMin) return;
    std::vector<std::int64_t> values;
    for (const double value : resident) values.push_back(static_cast<std::int64_t>(value));
    const auto window = static_cast<std::int64_t>(values.size() / kWindows);
    const MemoryTrend trend = memory_trend(values, window);
    const double growth = trend.bytes_per_value * static_cast<double>(values.size()) / 2;
    if (trend.trend != Trend::increasing || growth < kGrowthMin * resident.back()) return;
    add("memory_growth",
        fmt::format("memory grew by some {} ({:.0f} %) over the second half of the run, to {}", megabytes(growth),
                    100 * growth / resident.back(), megabytes(resident.back())),
        fmt::format("Most of it is in \"{}\"; the report's chart of memory shows since when.", grown_class()));
  }

  // The class of memory that holds most more at the end than in the middle.
  std::string grown_class() const {
    std::string name = "other";
    double most = 0;
    for (const auto& [known, entry] : at(run_.result, {"memory", "classes"}).items()) {
      const std::vector<double> values = numbers(at(entry, {"values"}));
      if (values.empty() || values.back() - values[values.size() / 2] <= most) continue;
      most = values.back() - values[values.size() / 2];
      name = known;
    }
    return name;
  }

  void look_at_memory_limit() {
    constexpr double kFull = 0.9;
    const auto peak = number(at(memory_series(run_), {"peak", "bytes"}));
    const auto limit = number(at(run_.environment, {"machine", "memory_limit"}));
    if (!peak || !limit || *peak < kFull * *limit) return;
    add("memory_nearly_full", fmt::format("the run held {} of the {} it may use", megabytes(*peak), megabytes(*limit)),
        "Lower data.cache_mib, data.batch_size or data.prefetch_batches, whichever the report's table of memory shows "
        "to hold most.");
  }

  void look_at_data() {
    if (!run_.recipe) return;
    const auto known = run_.checkpoint_texts.find("data");
    try {
      const std::uint64_t now =
          open_split(run_.recipe->data, static_cast<std::uint64_t>(run_.recipe->seed), Split::train)
              ->info()
              .fingerprint;
      if (known == run_.checkpoint_texts.end() || known->second == std::to_string(now)) return;
      add("data_changed",
          "the training data is not what it was: names, sizes or labels in " +
              without_credentials(run_.recipe->data.source) + " differ",
          "The run cannot be repeated over it; --resume would go on over what there is now.");
    } catch (const Error& error) {
      add("data_gone", std::string("the training data cannot be opened from here: ") + error.what(),
          "Without it the run can be neither repeated nor resumed.");
    }
  }

  void look_at_checkpoint() {
    if (!run_.newest_checkpoint) return;
    const std::string& name = *run_.newest_checkpoint;
    const auto said = [this](const char* key) {
      const auto found = run_.checkpoint_texts.find(key);
      return found == run_.checkpoint_texts.end() ? std::string(kUnavailable) : found->second;
    };
    if (said("format") != kCheckpointFormat || said("version") != kCheckpointVersion) {
      add("unsupported_checkpoint",
          fmt::format("{} has format {}, version {}; this build reads {}, version {}", name, said("format"),
                      said("version"), kCheckpointFormat, kCheckpointVersion),
          "Resume it with the build that wrote it.");
      return;
    }
    if (run_.is_finished() || !run_.recipe) return;
    const auto threads =
        split_cores(here_.cores_usable, run_.recipe->compute.intra_op_threads, run_.recipe->data.num_workers).compute;
    // A run that tunes itself, or repeats one that did, may have switched them.
    const bool may_switch = run_.checkpoint_texts.contains("tuning") || !run_.recipe->tune.replay.empty();
    if (!may_switch && said("compute_threads") != std::to_string(threads)) {
      add("other_threads",
          fmt::format("{} was written with {} compute threads, here the run would have {}", name,
                      said("compute_threads"), threads),
          "It can go on, but its results may differ in rounding; set compute.intra_op_threads to end with the same "
          "bits.");
    }
    const std::string cpu = text(at(run_.environment, {"machine", "cpu"}));
    if (!cpu.empty() && cpu != here_.cpu) {
      add("other_machine", fmt::format("the run was made on {}, this is {}", cpu, here_.cpu),
          "It can go on here, but its results may differ in rounding.");
    }
  }

  const RunContents& run_;
  const Machine& here_;
  std::vector<Finding> findings_;
};

}  // namespace

std::string RunContents::verb() const {
  const Json& command = at(environment, {"command"});
  return command.is_array() && command.size() > 1 ? text(command[1]) : std::string{};
}

bool RunContents::is_finished() const {
  if (profile.is_object()) return true;
  const Json& stopped_by = at(training(*this), {"stopped_by"});
  return stopped_by.is_number() && stopped_by == 0;
}

std::vector<std::pair<std::string, std::string>> run_facts(const RunContents& run) {
  std::vector<std::pair<std::string, std::string>> facts;
  const auto fact = [&facts](const char* name, std::string value) {
    facts.emplace_back(name, value.empty() ? std::string(kUnavailable) : std::move(value));
  };
  fact("Verb", run.verb());
  fact("Begun", text(at(run.environment, {"written"})));
  fact("Ended", run.is_finished() ? "whole" : "interrupted");
  if (run.verb() == "train" || run.verb() == "tune") {
    const bool stopped_early = at(training(run), {"stopped_early"}) == true;
    fact("Epochs", fmt::format("{} of {}{}", epochs(run).size(),
                               run.recipe ? std::to_string(run.recipe->train.epochs) : kUnavailable,
                               stopped_early ? ", ended by train.early_stopping_patience" : ""));
    const std::string val = accuracy_on(run, "val"), test = accuracy_on(run, "test");
    if (!val.empty()) fact("Val accuracy", val);
    if (!test.empty() || val.empty()) fact("Test accuracy", test);
    fact("Checkpoint", run.newest_checkpoint.value_or(""));
  }
  if (run.verb() == "profile" || run.verb() == "tune") {
    fact("Diagnosis", text(at(run.profile.is_object() ? run.profile : run.ledger, {"diagnosis", "sentence"})));
  }
  const auto peak = number(at(memory_series(run), {"peak", "bytes"}));
  fact("Peak memory", peak ? megabytes(*peak) : "");
  return facts;
}

std::vector<Finding> content_findings(const RunContents& run, const Machine& here) {
  return Contents(run, here).findings();
}

}  // namespace headrace
