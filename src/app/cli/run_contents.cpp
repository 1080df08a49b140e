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
#include "app/cli/doctor.h"
#include "app/cli/json_places.h"
#include "app/cli/run_loading.h"
#include "app/cli/run_memory.h"
#include "core/base/middle.h"
#include "core/exec/cores.h"
#include "data/source/held_out.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using json_places::at;
using json_places::number;
using json_places::numbers;
using json_places::text;

constexpr const char* kUnavailable = "unavailable";
constexpr std::size_t kShown = 5;

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

const Json& of_first_document(const RunContents& run, const char* key) {
  static const Json none;
  for (const Json* document : {&run.result, &run.ledger, &run.profile}) {
    if (at(*document, {key}).is_object()) return at(*document, {key});
  }
  return none;
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
    add_all(memory_findings(run_));
    add_all(loading_findings(run_, here_));
    look_at_debugging();
    look_at_diagnosis();
    look_at_data();
    look_at_checkpoint();
    return std::move(findings_);
  }

 private:
  void add(std::string code, std::string sentence, std::string advice) {
    findings_.push_back({std::move(code), std::move(sentence), std::move(advice)});
  }
  void add_all(std::vector<Finding> findings) { findings_.insert(findings_.end(), findings.begin(), findings.end()); }

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
    if (const auto code = number(at(run_.profile, {"exit_code"})); code && *code != 0) {
      add("failed", fmt::format("the script ended with exit code {:.0f}", *code),
          "Remove the cause, and profile it again: what is here is of the part that ran.");
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

  void look_at_debugging() {
    for (const auto& [name, value] : at(run_.environment, {"variables"}).items()) {
      if (auto finding = debug_variable_finding(name, text(value))) findings_.push_back(std::move(*finding));
    }
    if (!run_.recipe || !run_.recipe->train.step_guard.detect_anomaly) return;
    add("debug_mode", "train.step_guard.detect_anomaly was on, which examines the result of every operator",
        "A step takes several times as long with it: set it to false once the fault is found.");
  }

  // With what each limit that was told costs, as the verdict over resources has it.
  void look_at_diagnosis() {
    for (const Json& finding : at(run_.profile, {"diagnosis", "findings"})) {
      const std::string code = text(at(finding, {"code"}));
      std::string advice = text(at(finding, {"advice"}));
      for (const Json& loss : at(run_.profile, {"diagnosis", "resources", "losses"})) {
        const auto gain = number(at(loss, {"gain", "middle"})), low = number(at(loss, {"gain", "low"})),
                   high = number(at(loss, {"gain", "high"}));
        if (code != text(at(loss, {"resource"})) + "_limits" || !gain || !low || !high) continue;
        advice += fmt::format(" Without this limit the loop would run {:.0f} % faster ({:.0f} to {:.0f} %).",
                              100 * *gain, 100 * *low, 100 * *high);
      }
      add(code, text(at(finding, {"sentence"})), std::move(advice));
    }
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
  const Json& command = at(is_of_script() ? profile : environment, {"command"});
  return command.is_array() && command.size() > 1 ? text(command[1]) : std::string{};
}

bool RunContents::is_of_script() const {
  return at(profile, {"script"}).is_string();
}

const Json& RunContents::memory() const {
  return of_first_document(*this, "memory");
}

const Json& RunContents::loading() const {
  return of_first_document(*this, "loading");
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
  const auto peak = number(at(run.memory(), {"peak", "bytes"}));
  fact("Peak memory", peak ? megabytes_text(*peak) : "");
  if (!run.torch_traces.empty()) fact("torch.profiler", fmt::format("{}", fmt::join(run.torch_traces, "; ")));
  return facts;
}

nlohmann::ordered_json run_figures(const RunContents& run) {
  Json summary{{"verb", run.verb()}, {"finished", run.is_finished()}, {"epochs", epochs(run)}, {"result", result(run)}};
  summary["samples_per_second"] = at(run.profile, {"samples_per_second"});
  summary["time_split"] = at(run.profile, {"time_split"});
  summary["diagnosis"] = at(run.profile.is_object() ? run.profile : run.ledger, {"diagnosis"});
  summary["peak_memory_bytes"] = at(run.memory(), {"peak", "bytes"});
  return {{"performance_summary", std::move(summary)},
          {"cache_stats", cache_stats(run)},
          {"memory_trends", memory_trends(run)}};
}

std::vector<Finding> content_findings(const RunContents& run, const Machine& here) {
  return Contents(run, here).findings();
}

}  // namespace headrace
