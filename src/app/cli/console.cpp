#include "app/cli/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

constexpr std::int64_t kLineEvery_ns = 30'000'000'000;  // Where progress lines stay.

// 0, or the errno of the write that failed.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

// Nobody is left to tell when stderr cannot be written.
void write_stderr(std::string_view text) {
  static_cast<void>(write_all(STDERR_FILENO, text));
}

const char* word(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "headrace: debug: ";
    case LogLevel::info:
      return "";
    case LogLevel::warning:
      return "headrace: warning: ";
    case LogLevel::error:
      return "headrace: error: ";
  }
  return "";
}

std::string one_line(std::string_view text) {
  std::string line(text);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  for (char& c : line) {
    if (c == '\n') {
      c = ' ';
    } else if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f) {
      c = '?';
    }
  }
  return line;
}

// The front of the line that fits into `columns`, never half a UTF-8 character. A character counts as one column.
std::string_view fitting(std::string_view line, int columns) {
  int used = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool starts_character = (static_cast<unsigned char>(line[i]) & 0xC0U) != 0x80U;
    if (starts_character && used++ == columns) return line.substr(0, i);
  }
  return line;
}

bool environment_has(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

}  // namespace

Console::Console(const Invocation& invocation) : invocation_(invocation), last_line_ns_(monotonic_ns()) {}

Console::~Console() {
  clear_progress();
}

void Console::debug(const std::string& line) {
  say(LogLevel::debug, line);
}

void Console::info(const std::string& line) {
  say(LogLevel::info, line);
}

void Console::warning(const std::string& line) {
  say(LogLevel::warning, line);
}

void Console::error(const std::string& line) {
  say(LogLevel::error, line);
}

void Console::log_to(const std::filesystem::path& file) {
  log_.open(file, std::ios::app);
  if (!log_) fail(ErrorCode::io, "cli: cannot open {}: {}", file.string(), system_message(errno));
}

void Console::say(LogLevel level, std::string_view line) {
  const std::string text = word(level) + one_line(line);
  if (log_.is_open()) {
    log_ << utc_text() << "  " << text << std::endl;
    if (!log_) {
      log_.close();
      say(LogLevel::warning, "the run folder's log cannot be written any more");
    }
  }
  const bool quiet = invocation_.quiet && level < LogLevel::warning;
  if (quiet || level < invocation_.log_level) return;
  clear_progress();
  write_stderr(text + "\n");
}

void Console::write_stdout(std::string_view text) {
  if (stdout_error_ == 0) stdout_error_ = write_all(STDOUT_FILENO, text);
}

void Console::result(const std::string& text) {
  if (invocation_.quiet) return;
  clear_progress();
  const std::string lines = text.empty() || text.back() == '\n' ? text : text + "\n";
  if (invocation_.json == "-") {
    write_stderr(lines);
  } else {
    write_stdout(lines);
  }
}

std::string json_text(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void Console::json(const nlohmann::ordered_json& document) {
  if (!invocation_.json) return;
  const std::string text = json_text(document);
  if (*invocation_.json == "-") {
    clear_progress();
    write_stdout(text);
    return;
  }
  const std::filesystem::path path = *invocation_.json;
  std::error_code ignored;  // A path that cannot be looked at cannot be written either, and that is reported.
  const std::filesystem::file_status status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status) || std::filesystem::is_regular_file(status)) {
    write_file(path, text);
    return;
  }
  // Renaming a file over /dev/stdout or a pipe would destroy it.
  std::ofstream stream(path);
  stream << text << std::flush;
  if (!stream) fail(ErrorCode::io, "cli: cannot write {}: {}", path.string(), system_message(errno));
}

void Console::progress(const std::string& line) {
  progress_view({line});
}

void Console::progress_view(const std::vector<std::string>& lines) {
  if (!shows_progress() || lines.empty()) return;
  if (is_terminal()) {
    const std::size_t count = std::min(lines.size(), std::max<std::size_t>(rows(), 2) - 1);
    if (lines_shown_ > count) clear_progress();
    std::string text = lines_shown_ > 1 ? fmt::format("\x1b[{}A\r", lines_shown_ - 1) : "\r";
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) text += "\n";
      const std::string line = one_line(lines[i]);
      text += std::string(fitting(line, width() - 1)) + "\x1b[K";
    }
    write_stderr(text);
    lines_shown_ = count;
    return;
  }
  const std::int64_t now = monotonic_ns();
  if (now - last_line_ns_ < kLineEvery_ns) return;
  last_line_ns_ = now;
  write_stderr(one_line(fmt::format("{}", fmt::join(lines, "; "))) + "\n");
}

void Console::clear_progress() {
  if (lines_shown_ == 0) return;
  std::string text = "\r\x1b[K";
  for (std::size_t i = 1; i < lines_shown_; ++i) text += "\x1b[A\x1b[K";
  write_stderr(text);
  lines_shown_ = 0;
}

bool Console::shows_progress() const {
  return !invocation_.quiet && invocation_.log_level <= LogLevel::info;
}

std::size_t Console::rows() const {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 ? size.ws_row : 24;
}

bool Console::is_terminal() const {
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal != nullptr && std::string_view(terminal) == "dumb";
  return ::isatty(STDERR_FILENO) != 0 && !dumb;
}

bool Console::colour() const {
  return ::isatty(STDOUT_FILENO) != 0 && !environment_has("NO_COLOR");
}

int Console::width() const {
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO}) {
    winsize size{};
    if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return std::min<int>(size.ws_col, 120);
  }
  return 80;
}

int Console::finish(int code) {
  clear_progress();
  if (stdout_error_ == 0) return code;
  say(LogLevel::error, "cannot write to stdout: " + system_message(stdout_error_));
  return kExitFailed;
}

std::string accuracy_text(double accuracy, std::optional<double> top5_accuracy) {
  const std::string text = fmt::format("{:.4f}", accuracy);
  return top5_accuracy ? fmt::format("{} (top 5: {:.4f})", text, *top5_accuracy) : text;
}

std::string megabytes_text(double bytes) {
  return bytes < 1e9 ? fmt::format("{:.0f} MB", bytes * 1e-6) : fmt::format("{:.2f} GB", bytes * 1e-9);
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "unavailable";
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(std::min(seconds, 1e12)));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  const std::int64_t minutes = (whole + 30) / 60;
  return fmt::format("{} h {:02} min", minutes / 60, minutes % 60);
}

}  // namespace headrace
