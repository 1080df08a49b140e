// doctor RUN: are the files of a run whole?
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "cli/doctor.h"
#include "cli/safetensors_check.h"
#include "recipe/recipe.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kFileBytesMax = 1LL << 30;

class RunCheck {
 public:
  explicit RunCheck(const fs::path& folder) : folder_(folder) {}

  std::vector<Finding> findings() {
    look_at_lock();
    for (const fs::path& path : files()) look_at(path);
    look_for_missing_files();
    return std::move(findings_);
  }

 private:
  void add(const char* code, const std::string& sentence, const std::string& advice) {
    findings_.push_back({code, sentence, advice});
  }

  std::vector<fs::path> files() const {
    std::error_code error;
    std::vector<fs::path> paths;
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
      paths.push_back(entry->path());
    }
    if (error) {
      const bool missing = error == std::errc::no_such_file_or_directory;
      fail(missing ? ErrorCode::not_found : ErrorCode::io, "cli: cannot list {}: {}", folder_.string(),
           error.message());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  // Asks for the lock without making the file.
  void look_at_lock() {
    const int lock = ::open((folder_ / "lock").c_str(), O_RDONLY | O_CLOEXEC);
    if (lock < 0) return;
    if (::flock(lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      add("in_use", "a run is writing to the folder now", "Look again when it has ended.");
    }
    ::close(lock);
  }

  void look_at(const fs::path& path) {
    const std::string extension = path.extension().string();
    if (extension == ".headrace-tmp") {
      add("left_over", path.filename().string() + " was left by a process that was killed while it wrote",
          "Remove it; nothing reads it.");
    } else if (extension == ".safetensors") {
      report(path, safetensors_fault(path), "Resume takes the next older checkpoint; remove this one.");
    } else if (extension == ".toml") {
      report(path, recipe_fault(path), "Run the job again to have it written anew.");
    } else if (extension == ".json") {
      report(path, json_fault(path), "Run the job again to have it written anew.");
    } else if (extension == ".html") {
      report(path, page_fault(path), "Run the job again to have it written anew.");
    }
  }

  void report(const fs::path& path, const std::optional<std::string>& fault, const char* advice) {
    if (fault) add("damaged", path.filename().string() + " " + *fault, advice);
  }

  static std::optional<std::string> recipe_fault(const fs::path& path) {
    try {
      load_recipe(path, {});
      return std::nullopt;
    } catch (const Error& error) {
      return std::string("does not load: ") + error.what();
    }
  }

  std::optional<std::string> json_fault(const fs::path& path) {
    std::string text;
    try {
      text = read_file(path, kFileBytesMax);
    } catch (const Error& error) {
      return std::string("does not load: ") + error.what();
    }
    const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!document.is_object()) return "is no whole JSON object";
    // A Chrome trace keeps what is not an event in otherData.
    const Json& head = document.contains("otherData") ? document["otherData"] : document;
    const Json format = head.is_object() ? head.value("format", Json()) : Json();
    if (!format.is_string() || format.get<std::string>().rfind("headrace-", 0) != 0) return "does not say its format";
    if (head.value("version", Json()) != 1) return "has version " + head.value("version", Json()).dump() + ", wanted 1";
    if (format == "headrace-environment") read_verb(document);
    return std::nullopt;
  }

  void read_verb(const Json& environment) {
    const Json command = environment.value("command", Json());
    if (command.is_array() && command.size() > 1 && command[1].is_string()) verb_ = command[1].get<std::string>();
  }

  static std::optional<std::string> page_fault(const fs::path& path) {
    std::string text;
    try {
      text = read_file(path, kFileBytesMax);
    } catch (const Error& error) {
      return std::string("does not load: ") + error.what();
    }
    const std::size_t last = text.find_last_not_of(" \n\r\t");
    const std::string_view end = "</html>";
    const bool whole = last != std::string::npos && last + 1 >= end.size() &&
                       text.compare(last + 1 - end.size(), end.size(), end) == 0;
    return whole ? std::nullopt : std::optional<std::string>("ends before its page does");
  }

  void look_for_missing_files() {
    std::vector<std::string> wanted{"recipe.toml", "environment.json"};
    if (verb_ == "tune") wanted.insert(wanted.end(), {"tuned.toml", "ledger.json", "report.html"});
    if (verb_ == "profile") wanted.insert(wanted.end(), {"profile.json", "trace.json", "report.html"});
    for (const std::string& name : wanted) {
      std::error_code ignored;  // A file that cannot be looked at is as good as missing.
      if (fs::exists(folder_ / name, ignored)) continue;
      add("missing", name + " is missing",
          verb_.empty() ? "Is this a run folder?" : "The run ended before it was written.");
    }
    const std::vector<fs::path> all = files();
    const bool checkpoint =
        std::any_of(all.begin(), all.end(), [](const fs::path& path) { return path.extension() == ".safetensors"; });
    if (verb_ == "train" && !checkpoint) {
      add("missing", "there is no checkpoint", "The run ended before its first epoch did; nothing can be resumed.");
    }
  }

  fs::path folder_;
  std::string verb_;  // That wrote the folder, from environment.json.
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> run_findings(const fs::path& folder) {
  return RunCheck(folder).findings();
}

}  // namespace headrace
