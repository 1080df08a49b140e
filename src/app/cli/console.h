// What a verb says, and where: results to stdout, everything else to stderr, one JSON document where --json points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include "app/cli/invocation.h"

namespace headrace {

// One thread. A closed stdout is noticed and never fatal before the work is done: finish() says so by exit code 1.
// Nobody is left to tell about a closed stderr. SIGPIPE must be ignored (install_stop_signals).
class Console {
 public:
  explicit Console(const Invocation& invocation);  // Keeps a reference.
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  // Lines on stderr, with the level's word before all but info; also into the run folder's log once log_to() was
  // called, whatever --quiet and --log-level say. Control characters become "?": names from files must not steer a
  // terminal.
  void debug(const std::string& line);
  void info(const std::string& line);
  void warning(const std::string& line);
  void error(const std::string& line);
  void log_to(const std::filesystem::path& file);  // Appends, with UTC times. Error{io} when it cannot be opened.

  // The verb's answer: stdout, or stderr when JSON goes to stdout. Silent under --quiet.
  void result(const std::string& text);
  // The one JSON document of --json; no call does anything without that flag. A file is written aside and renamed, a
  // device or pipe is written to. A number that is not finite becomes null.
  void json(const nlohmann::ordered_json& document);

  // A live line on a terminal ("Training ..."), replaced in place and removed by clear_progress() or the next line;
  // elsewhere a line at most every 30 s, the first 30 s after the verb began; nothing under --quiet.
  void progress(const std::string& line);
  // The same of several lines, one below the other: on a terminal as many as it has rows for, elsewhere joined to one
  // with "; ".
  void progress_view(const std::vector<std::string>& lines);
  void clear_progress();
  bool shows_progress() const;  // Not under --quiet, and not with a log level above info.

  bool is_terminal() const;  // stderr, and it can move its cursor.
  bool colour() const;       // stdout is a terminal and NO_COLOR is not set.
  int width() const;         // Columns of the terminal, 80 when there is none, at most 120.

  // `code`, or 1 when a write to stdout failed (reported on stderr).
  int finish(int code);

 private:
  void say(LogLevel level, std::string_view line);
  void write_stdout(std::string_view text);
  std::size_t rows() const;  // Of the terminal on stderr, 24 where it does not tell.

  const Invocation& invocation_;
  std::ofstream log_;
  std::int64_t last_line_ns_;    // When progress() last left a line; at first, when the verb began.
  std::size_t lines_shown_ = 0;  // Of progress, on the terminal; the cursor is at the end of the last.
  int stdout_error_ = 0;         // errno of the first write that failed.
};

// A document as this program writes it: indented by two, bytes that are not UTF-8 replaced, a newline at the end.
std::string json_text(const nlohmann::ordered_json& document);

// "12.3 s", "4 min 05 s", "1 h 02 min".
std::string duration_text(double seconds);

// "480 MB", "1.20 GB", of powers of ten.
std::string megabytes_text(double bytes);

// "0.9132", or "0.9132 (top 5: 0.9871)".
std::string accuracy_text(double accuracy, std::optional<double> top5_accuracy);

}  // namespace headrace
