// From a trace recorded in Python to a diagnosis and a report.
#pragma once

#include <headrace/diagnosis.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace headrace::python {

// `input`'s split, threads and cores are filled in from the record, the process and the machine.
Diagnosis diagnose_record(const TraceRecord& record, DiagnosisInput input, std::int64_t skip);
struct TraceReportOptions {
  std::string title;
  std::int64_t skip = 0;  // Steps of warm-up.
  std::string command;    // That makes the recording again; empty: unavailable.
};
// One HTML file: time split, percentiles, a step's waterfall, flame graph, diagnosis, memory, machine, command.
void write_trace_report(const std::filesystem::path& path, const TraceRecord& record, const MemoryTimeline& memory,
                        std::int64_t samples_per_step, const TraceReportOptions& options);

}  // namespace headrace::python
