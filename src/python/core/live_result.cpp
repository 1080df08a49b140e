#include "python/core/live_result.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "app/cli/console.h"
#include "app/cli/environment.h"
#include "core/base/clock.h"
#include "core/hardware/machine.h"
#include "insight/tune/ledger_json.h"
#include "insight/tune/ledger_report.h"
#include "insight/tune/live_report.h"
#include "python/core/torch_facts.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

using nlohmann::ordered_json;

constexpr int kTextWidth = 100;

// What stands above the figures.
std::string note_of(const LiveRun& run) {
  if (!run.repeated) return run.note;
  const RepeatedTurns& turns = *run.repeated;
  return fmt::format(
      "Repeated from {}: {} of {} turns are applied, nothing is measured. All that follows is of the run that wrote "
      "it.{}{}",
      turns.source, turns.applied, turns.all, run.note.empty() ? "" : " ", run.note);
}

Report report_of(const LiveLedger& ledger, const LiveRun& run, std::span<const Candidate> candidates) {
  Report report;
  report.title = run.title;
  report.note = note_of(run);
  show_live_ledger(report, ledger, candidates, "the loop as written");
  report.not_tried = run.not_tried;
  report.settings = run.settings;
  for (Applied& entry : settings_left_out(ledger.ledger)) report.settings.push_back(std::move(entry));
  report.environment = report_environment(detect_machine(), torch_version());
  report.command = run.command;
  report.written = utc_text();
  return report;
}

ordered_json document_of(const LiveLedger& ledger, const Report& report, const LiveRun& run) {
  ordered_json document = live_document(ledger, report, run.note);
  if (run.repeated) {
    document["repeated"] = {
        {"ledger", run.repeated->source}, {"turns_applied", run.repeated->applied}, {"turns", run.repeated->all}};
  }
  return document;
}

}  // namespace

LiveResult result_of(LiveLedger ledger, const LiveRun& run, std::span<const Candidate> candidates) {
  ledger.ledger.baseline = run.baseline;
  const Report report = report_of(ledger, run, candidates);
  return {json_text(document_of(ledger, report, run)), report_text(report, kTextWidth, false), report_html(report)};
}

nb::object trials_of(const Ledger& ledger) {
  return object_of(to_json(ledger).at("trials"));
}

}  // namespace headrace::python
