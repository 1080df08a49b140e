#include "app/cli/compare_run.h"

#include <chrono>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "core/exec/stop.h"
#include "core/hardware/machine.h"
#include "data/store/file_name.h"
#include "insight/compare/stored_runs.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kLook{50};
constexpr std::int64_t kLogBytesMax = 1LL << 28;
constexpr std::size_t kLineMax = 300;
// $1: the folder, $2: the log; the rest is the command. Its output must not get between ours.
constexpr const char* kScript = "cd -- \"$1\" && log=$2 && shift 2 && exec \"$@\" >\"$log\" 2>&1";

std::vector<std::string> with_folder(std::vector<std::string> arguments, const fs::path& folder) {
  const std::string place = kOutPlace;
  for (std::string& word : arguments) {
    for (std::size_t at = word.find(place); at != std::string::npos;
         at = word.find(place, at + folder.native().size())) {
      word.replace(at, place.size(), folder.native());
    }
  }
  return arguments;
}

std::optional<RunFigures> told_figures(const std::string& name, const fs::path& result, const fs::path& out) {
  if (fs::exists(result)) return figures_of_lines(read_file(result, kLogBytesMax), "the result of " + name);
  if (is_stored(out)) return read_stored_runs(out).runs.front();
  return std::nullopt;
}

void add_from_outside(const FinishedProcess& process, RunFigures& figures) {
  auto& metrics = figures.metrics;
  if (process.peak_memory && !metrics.contains("peak_memory_bytes")) {
    metrics["peak_memory_bytes"] = static_cast<double>(*process.peak_memory);
    figures.seen_from_outside.insert("peak_memory_bytes");
  }
  if (!metrics.contains("step_p50_s") && !metrics.contains("samples_per_s")) {
    metrics["wall_s"] = process.wall_s;
    figures.seen_from_outside.insert("wall_s");
  }
}

}  // namespace

std::string last_line_of(const fs::path& log) {
  std::string text = fs::exists(log) ? read_file(log, kLogBytesMax) : "";
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "no output";
  text.resize(end + 1);
  const std::string line = text.substr(text.rfind('\n') + 1).substr(0, kLineMax);
  return printable_name(line);
}

std::optional<FinishedProcess> run_logged(const ComparedCommand& command, const fs::path& log, const fs::path& result,
                                          double limit_s) {
  const std::string folder = command.folder.empty() ? fs::current_path().string() : command.folder.string();
  ChildCommand child_command{.arguments = {"sh", "-c", kScript, "sh", folder, log.string()},
                             .descriptors = {},
                             .environment = {fmt::format("{}={}", kResultVariable, result.string())}};
  child_command.arguments.insert(child_command.arguments.end(), command.arguments.begin(), command.arguments.end());
  FinishedProcess finished;
  const std::int64_t begin_ns = monotonic_ns();
  ChildProcess child(child_command);
  std::optional<ExitStatus> ended;
  while (!(ended = child.wait(kLook))) {
    if (stop_signal() != 0) return std::nullopt;  // Its destructor ends the child.
    if (const auto bytes = peak_memory_of(child.pid())) finished.peak_memory = bytes;
    if (seconds_since(begin_ns) > limit_s) {
      fail(ErrorCode::io, "compare: {} took longer than {:.4g} s (--limit-s) and was ended; its last line: {}",
           command.name, limit_s, last_line_of(log));
    }
  }
  finished.wall_s = seconds_since(begin_ns);
  finished.status = *ended;
  return finished;
}

std::optional<FinishedProcess> run_to_success(const ComparedCommand& command, const fs::path& log,
                                              const fs::path& result, double limit_s) {
  std::optional<FinishedProcess> finished = run_logged(command, log, result, limit_s);
  if (finished && (finished->status.code != 0 || finished->status.signal != 0)) {
    fail(ErrorCode::io, "compare: {} {}; its last line: {}", command.name, finished->status.text(), last_line_of(log));
  }
  return finished;
}

std::optional<RunFigures> run_arm(const ComparedCommand& command, double limit_s) {
  const TemporaryFolder folder;
  const fs::path log = folder.path() / "log.txt", result = folder.path() / "result.jsonl", out = folder.path() / "out";
  ComparedCommand run = command;
  run.arguments = with_folder(command.arguments, out);
  const std::optional<FinishedProcess> finished = run_to_success(run, log, result, limit_s);
  if (!finished) return std::nullopt;
  RunFigures figures = told_figures(command.name, result, out).value_or(RunFigures{});
  add_from_outside(*finished, figures);
  return figures;
}

}  // namespace headrace
