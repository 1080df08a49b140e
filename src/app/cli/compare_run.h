// One run of an arm that is compared, in a process of its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/exec/child_process.h"
#include "insight/compare/run_figures.h"

namespace headrace {

// In a run's environment: the file that it may write its figures to, as JSON lines (insight/compare/run_figures.h).
inline constexpr const char* kResultVariable = "HEADRACE_RESULT";
// In an arm's arguments: the folder that a run may write to, new for each.
inline constexpr const char* kOutPlace = "{out}";

struct ComparedCommand {
  std::string name;                    // "NEW b.toml", for messages.
  std::vector<std::string> arguments;  // The program first; kOutPlace in them is replaced.
  std::filesystem::path folder;        // That it runs in; empty: ours.
};

struct FinishedProcess {
  ExitStatus status;
  double wall_s = 0;
  // Bytes: the most that the process had resident, looked at every 50 ms; its children are not in it. nullopt: it was
  // over before anybody looked.
  std::optional<std::int64_t> peak_memory;
};

// Runs a process to its end, its output and errors in `log`, with HEADRACE_RESULT beside our environment. nullopt: a
// signal asked us to stop, and the process is ended. Error{io}: it took longer than `limit_s`, and is ended.
std::optional<FinishedProcess> run_logged(const ComparedCommand& command, const std::filesystem::path& log,
                                          const std::filesystem::path& result, double limit_s);
// The same of a process that has to end well. Error{io} with the last line of its output, too: it failed.
std::optional<FinishedProcess> run_to_success(const ComparedCommand& command, const std::filesystem::path& log,
                                              const std::filesystem::path& result, double limit_s);

// Runs an arm once. Its figures are those that it writes to HEADRACE_RESULT, or those of a profile.json or result.json
// in its {out}; peak_memory_bytes is looked at from outside where it tells none, and wall_s where it tells neither a
// step's time nor a rate. nullopt: a signal asked us to stop. Error{io} with the last line of its output: it could not
// be started, failed, or took too long; Error{corrupt_data}: figures that do not read.
std::optional<RunFigures> run_arm(const ComparedCommand& command, double limit_s);

// The last line of a log that is not empty, without control characters; "no output" where there is none.
std::string last_line_of(const std::filesystem::path& log);

}  // namespace headrace
