// Makes the report of recorded files, without LibTorch; report_page_test.py and bench/report_page read it.
//   report_probe profile OUT TRACE
//     TRACE: a trace.json of ours, of 64 samples a step. Writes OUT.html, and OUT.txt of 80 columns.
//   report_probe tuning OUT BEFORE AFTER LEDGER
//     LEDGER: a ledger.json, of a tuning or of a run that tuned itself; BEFORE, AFTER: as TRACE.
#include <headrace/diagnosis.h>
#include <headrace/ledger.h>
#include <headrace/live_tuner.h>
#include <headrace/report.h>
#include <headrace/trace.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/files.h"
#include "core/base/run_program.h"
#include "core/hardware/machine.h"
#include "insight/tune/ledger_report.h"
#include "insight/tune/live_report.h"

namespace {

using namespace headrace;
using Words = std::vector<std::string>;

constexpr std::int64_t kBytesMax = 1 << 28;

// What add_memory() put into a record.
MemoryTimeline memory_in(const TraceRecord& record) {
  constexpr std::string_view kPrefix = "memory.";
  std::map<std::int64_t, std::int64_t> resident;
  std::map<std::string, std::map<std::int64_t, std::int64_t>> classes;
  for (const TraceEvent& event : record.events) {
    const TraceRecord::Name& name = record.names[event.name];
    if (name.text == memory::kResident.text) resident[event.begin_ns] = event.value;
    const bool is_class = name.category == memory::kOther.category && name.text != memory::kOther.text;
    if (is_class && name.text.starts_with(kPrefix)) {
      classes[name.text.substr(kPrefix.size())][event.begin_ns] = event.value;
    }
  }
  MemoryTimeline timeline;
  for (const auto& [name, values] : classes) timeline.classes.push_back({name, {}});
  for (const auto& [at_ns, bytes] : resident) {
    timeline.at_ns.push_back(at_ns);
    timeline.resident.push_back(bytes);
    for (MemoryTimeline::Class& known : timeline.classes) {
      const auto& values = classes.at(known.name);
      const auto found = values.find(at_ns);
      known.bytes.push_back(found == values.end() ? 0 : found->second);
    }
  }
  return timeline;
}

void fill(Report& report, const TraceRecord& record) {
  DiagnosisInput input;
  input.split = split_time(record);
  input.samples_per_step = 64;
  const Diagnosis diagnosis = diagnose(input);
  report.diagnosis = diagnosis.sentence;
  report.findings.insert(report.findings.end(), diagnosis.findings.begin(), diagnosis.findings.end());
  if (!report.before) report.before = input.split;
  if (report.kind == Report::Kind::profile) {
    report.verdict = diagnosis.sentence;
    report.baseline_samples_per_second = diagnosis.samples_per_second;
  }
  report.memory = memory_in(record);
  const Machine machine = detect_machine();
  report.environment = {{"CPU", machine.cpu}, {"System", machine.system}};
}

Report profile(const Words& words) {
  const TraceRecord record = read_chrome_trace(words.at(2));
  Report report;
  report.kind = Report::Kind::profile;
  fill(report, record);
  show_trace(report, record, "Now");
  return report;
}

Report tuning(const Words& words) {
  const TraceRecord before = read_chrome_trace(words.at(2)), after = read_chrome_trace(words.at(3));
  const std::string ledger = read_file(words.at(4), kBytesMax);
  Report report;
  if (ledger.find("headrace-live-ledger") != std::string::npos) {
    show_live_ledger(report, parse_live_ledger(ledger, words.at(4)), {}, "the loop as written");
  } else {
    show_ledger(report, parse_ledger(ledger, words.at(4)), {}, "the recipe as written");
  }
  fill(report, before);
  show_trace(report, before, "Before");
  show_trace(report, after, "After");
  return report;
}

void run(const Words& words) {
  Report report = words.at(0) == "profile" ? profile(words) : tuning(words);
  report.title = "a recorded job";
  report.command = "report_probe";
  for (const std::string& word : words) report.command += " " + word;
  write_file(words.at(1) + ".html", report_html(report));
  write_file(words.at(1) + ".txt", report_text(report, 80, false));
}

}  // namespace

int main(int argc, char** argv) {
  return run_program(argc, argv, run, "report_probe");
}
