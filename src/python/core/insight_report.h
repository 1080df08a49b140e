// From a trace recorded in Python to a diagnosis, a report and event files.
#pragma once

#include <headrace/diagnosis.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace headrace::python {

struct DiagnosedRecord {
  Diagnosis diagnosis;  // With a verdict over resources, as far as the record holds figures for one.
  TimeSplit split;
};
// Of the steps of a loop or of a profile of operators. `input`'s split, resources, threads, cores and peak memory are
// filled in from the record, the process and the machine.
DiagnosedRecord diagnose_record(const TraceRecord& record, DiagnosisInput input, std::int64_t skip);
// The same of a Chrome trace that headrace wrote, whichever process it is of: its memory is unavailable. Errors are
// read_chrome_trace()'s, too.
DiagnosedRecord diagnose_file(const std::filesystem::path& path, DiagnosisInput input, std::int64_t skip);
struct TraceReportOptions {
  std::string title;
  std::int64_t skip = 0;  // Steps of warm-up.
  std::string command;    // That makes the recording again; empty: unavailable.
};
// One HTML file: time split, percentiles, a step's waterfall, flame graph, diagnosis, memory, machine, command.
void write_trace_report(const std::filesystem::path& path, const TraceRecord& record, const MemoryTimeline& memory,
                        std::int64_t samples_per_step, const TraceReportOptions& options);
// A new event file for TensorBoard below `folder`, and its path: of each step time_split/step_s and, of its parts,
// data_wait_s, transfer_s, forward_s, backward_s and optimizer_s, in seconds, with the time of day at which it ended.
// The record: one that this process made. Errors: split_time()'s, before a file is there, and TensorBoardWriter's.
std::filesystem::path write_step_events(const std::filesystem::path& folder, const TraceRecord& record);

}  // namespace headrace::python
