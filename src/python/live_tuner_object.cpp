#include "python/live_tuner_object.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "app/cli/console.h"
#include "app/cli/environment.h"
#include "core/base/clock.h"
#include "core/hardware/machine.h"
#include "insight/tune/ledger_json.h"
#include "insight/tune/ledger_report.h"
#include "insight/tune/live_report.h"
#include "python/keywords.h"

namespace headrace::python {
namespace {

namespace py = pybind11;
using nlohmann::ordered_json;

constexpr int kTextWidth = 100;

Report report_of(const LiveLedger& ledger, const LiveRun& run, std::span<const Candidate> candidates) {
  Report report;
  report.title = run.title;
  report.note = run.note;
  show_live_ledger(report, ledger, candidates, "the loop as written");
  report.not_tried = run.not_tried;
  report.settings = run.settings;
  for (Applied& entry : settings_left_out(ledger.ledger)) report.settings.push_back(std::move(entry));
  report.environment = report_environment(detect_machine(), TORCH_VERSION);
  report.command = run.command;
  report.written = utc_text();
  return report;
}

ordered_json document_of(const LiveLedger& ledger, const Report& report, const std::string& note) {
  ordered_json document = ordered_json::parse(json_text(ledger));
  document["title"] = report.title;
  document["command"] = report.command;
  document["written"] = report.written;
  document["problem"] = note.empty() ? ordered_json(nullptr) : ordered_json(note);
  for (const auto& [name, value] : report.environment) document["environment"][name] = value;
  document["not_tried"] = ordered_json::array();
  for (const Report::NotTried& change : report.not_tried) {
    document["not_tried"].push_back({{"name", change.name}, {"key", change.key}, {"reason", change.reason}});
  }
  document["settings"] = ordered_json::array();
  for (const Applied& applied : report.settings) {
    document["settings"].push_back({{"key", applied.key},
                                    {"requested", applied.requested},
                                    {"applied", applied.applied},
                                    {"reason", applied.reason}});
  }
  return document;
}

}  // namespace

LiveTunerObject::LiveTunerObject(py::object loop, std::vector<Candidate> candidates, LiveOptions options,
                                 std::uint64_t seed, py::dict progress, py::object clock)
    : loop_(std::move(loop)),
      progress_(std::move(progress)),
      clock_(std::move(clock)),
      candidates_(std::move(candidates)),
      tuner_(loop_, candidates_, std::move(options), seed, progress_of(), clock_of()) {}

void LiveTunerObject::tell(const char* kind, const std::string& text) const {
  if (progress_.contains(kind)) progress_[kind](text);
}

LiveProgress LiveTunerObject::progress_of() {
  LiveProgress progress;
  progress.began = [this](const std::string& sentence) { tell("began", sentence); };
  progress.judged = [this](const Quietness& found) {
    if (!found.quiet.value_or(true)) tell("machine", found.sentence);
  };
  progress.decided = [this](const Trial& trial) {
    tell("decided", fmt::format("{:<12} {}: {}", to_string(trial.verdict), trial.name, trial.sentence));
  };
  progress.ended = [this](const std::string& sentence) { tell("ended", sentence); };
  return progress;
}

LiveTuner::Clock LiveTunerObject::clock_of() const {
  if (clock_.is_none()) return {};
  return [this] { return clock_().cast<double>(); };
}

LiveResult LiveTunerObject::result(const LiveRun& run) const {
  LiveLedger ledger = tuner_.ledger();
  ledger.ledger.baseline = run.baseline;
  const Report report = report_of(ledger, run, candidates_);
  return {json_text(document_of(ledger, report, run.note)), report_text(report, kTextWidth, false),
          report_html(report)};
}

py::list LiveTunerObject::trials() const {
  return object_of(to_json(tuner_.ledger().ledger).at("trials"));
}

int LiveTunerObject::traverse(visitproc visit, void* arg) const {
  Py_VISIT(loop_.object().ptr());
  Py_VISIT(progress_.ptr());
  Py_VISIT(clock_.ptr());
  return 0;
}

void LiveTunerObject::let_go() {
  loop_.let_go();
  progress_ = py::none();
  clock_ = py::none();
}

}  // namespace headrace::python
