// What a watch has seen, as a JSON document.
#include <headrace/diagnosis.h>
#include <headrace/profile_summary.h>
#include <headrace/report.h>
#include <headrace/time_split.h>
#include <headrace/wall_split.h>

#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "insight/diagnose/json.h"
#include "python/core/loop_watch.h"

namespace headrace::python {
namespace {

constexpr const char* kNotAllRecorded =
    "not all waits were recorded: names, every_steps, from_s or length_s leaves some out";

bool has_all(const TraceChoice& choice) {
  return choice.names.empty() && choice.every_steps == 1 && choice.from_ns == 0 && choice.length_ns == 0;
}

nlohmann::ordered_json flights_json(const FlightRecorder::Status& flown) {
  nlohmann::ordered_json dumps = nlohmann::ordered_json::array();
  for (const auto& dump : flown.dumps) {
    dumps.push_back({{"path", dump.path}, {"reason", dump.reason}, {"events", dump.events}, {"dropped", dump.dropped}});
  }
  return {{"dumps", std::move(dumps)},
          {"refused", flown.refused},
          {"slow_steps", flown.slow_steps},
          {"problem", flown.problem.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(flown.problem)}};
}

nlohmann::ordered_json choice_json(const TraceChoice& choice) {
  return {{"names", choice.names},
          {"every_steps", choice.every_steps},
          {"from_s", static_cast<double>(choice.from_ns) * 1e-9},
          {"length_s", static_cast<double>(choice.length_ns) * 1e-9}};
}

// Of the newest `steps` steps, in their order. Empty: the system does not tell, or somebody else recorded steps, too.
std::vector<std::int64_t> resident_by_step(const TraceRecord& record, std::int64_t steps) {
  std::vector<std::int64_t> resident;
  for (const TraceEvent& event : record.events) {
    const TraceRecord::Name& name = record.names[event.name];
    const bool is_resident = name.text == memory::kResident.text && name.category == memory::kResident.category;
    if (is_resident) resident.push_back(event.value);
  }
  if (std::ssize(resident) < steps) return {};
  resident.erase(resident.begin(), resident.end() - steps);
  return resident;
}

}  // namespace

Waits LoopWatch::waits() const {
  Waits waits = waits_in(record_);
  if (has_all(choice_)) return waits;
  Waits known;
  known.cpu_taken_s = waits.cpu_taken_s;
  known.why_no_lock = known.why_no_io = kNotAllRecorded;
  return known;
}

nlohmann::ordered_json LoopWatch::document_of(const DiagnosisInput& input, const Report& report) const {
  const auto bytes = [](std::optional<std::int64_t> value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json document{{"format", "headrace-watch"}, {"version", 1}, {"title", report.title}};
  document["written"] = report.written;
  document["host_time"] = host_time_ ? nlohmann::ordered_json(kHostTime) : nlohmann::ordered_json(nullptr);
  document["steps"] = steps_;
  document["time_split"] = to_json(input.split);
  document["wall_split"] = to_json(*report.wall);
  document["waits"] = to_json(*report.waits);
  document["choice"] = choice_json(choice_);
  document["step_histogram"] = to_json(span_durations(record_, step::kStep.text));
  document["flights"] = flights_json(flown_);
  document["metrics"] =
      metric_series(input.split, input.samples_per_step, resident_by_step(record_, input.split.steps));
  document["profile_summary"] = to_json(get_profile_summary(record_));
  document["mean_memory_bytes"] = bytes(input.mean_memory);
  document["peak_memory_bytes"] = bytes(peak_memory_);
  document["memory"] = to_json(timeline_);
  return document;
}

}  // namespace headrace::python
