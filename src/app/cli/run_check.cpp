// doctor RUN: are the files of a run whole, and what do they tell?
#include <fcntl.h>
#include <headrace/trace.h>
#include <headrace/transform.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/cli/doctor.h"
#include "app/cli/profiling_cost.h"
#include "app/cli/run_contents.h"
#include "app/cli/run_loading.h"
#include "app/cli/safetensors_check.h"
#include "app/cli/summary_check.h"
#include "app/cli/torch_trace.h"
#include "app/recipe/recipe.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "data/transform/eval_transform.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::int64_t kFileBytesMax = 1LL << 30;

class RunCheck {
 public:
  explicit RunCheck(const fs::path& folder) : folder_(folder) {}

  // The files that are whole are then in contents().
  std::vector<Finding> findings() {
    look_at_lock();
    for (const fs::path& path : files()) look_at(path);
    look_for_missing_files();
    read_log();
    return std::move(findings_);
  }
  const RunContents& contents() const { return contents_; }

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
      look_at_tensors(path);
    } else if (extension == ".toml") {
      const bool is_transform = path.filename() == transform::kEvalTransformFile;
      report(path, is_transform ? eval_transform_fault() : recipe_fault(path),
             "Run the job again to have it written anew.");
    } else if (extension == ".json" && look_at_torch_trace(path)) {
      return;
    } else if (extension == ".json" && path.stem().string().starts_with("trace")) {
      look_at_trace(path);
    } else if (extension == ".json") {
      report(path, json_fault(path), "Run the job again to have it written anew.");
    } else if (extension == ".html") {
      report(path, page_fault(path), "Run the job again to have it written anew.");
    }
  }

  void report(const fs::path& path, const std::optional<std::string>& fault, const char* advice) {
    if (fault) add("damaged", path.filename().string() + " " + *fault, advice);
  }

  // False: it is none.
  bool look_at_torch_trace(const fs::path& path) {
    const std::optional<TorchTrace> trace = read_torch_trace(path);
    if (!trace) return false;
    const std::string name = path.filename().string();
    if (trace->is_whole) {
      contents_.torch_traces.push_back(name + ": " + torch_trace_text(*trace));
    } else {
      add("damaged", name + ", of torch.profiler, is no whole JSON object",
          "Its process may have ended while it wrote: profile the run again.");
    }
    return true;
  }

  void look_at_trace(const fs::path& path) {
    try {
      const TraceRecord record = read_chrome_trace(path.string());
      if (auto finding = profiling_overhead(record, span_seconds())) findings_.push_back(std::move(*finding));
    } catch (const Error& error) {
      report(path, std::string("does not load: ") + error.what(), "Run the job again to have it written anew.");
    }
  }

  // Files come in the order of their names, and checkpoints have their steps in nine digits in theirs.
  void look_at_tensors(const fs::path& path) {
    SafetensorsCheck check = check_safetensors(path);
    report(path, check.fault, "Resume takes the next older checkpoint; remove this one.");
    const std::string name = path.filename().string();
    if (check.fault || !name.starts_with("checkpoint-") || name == "checkpoint-best.safetensors") return;
    contents_.newest_checkpoint = name;
    contents_.checkpoint_texts = std::move(check.texts);
    contents_.checkpoint_history =
        Json::parse(contents_.checkpoint_texts["history"], nullptr, /*allow_exceptions=*/false);
  }

  std::optional<std::string> recipe_fault(const fs::path& path) {
    try {
      Recipe recipe = load_recipe(path, {}).recipe;
      if (path.filename() == "recipe.toml") contents_.recipe = std::move(recipe);
      return std::nullopt;
    } catch (const Error& error) {
      return std::string("does not load: ") + error.what();
    }
  }

  std::optional<std::string> eval_transform_fault() const {
    try {
      static_cast<void>(Transform::from_run(folder_));
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
    Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!document.is_object()) return "is no whole JSON object";
    const Json format = document.value("format", Json());
    if (!format.is_string() || format.get<std::string>().rfind("headrace-", 0) != 0) return "does not say its format";
    if (document.value("version", Json()) != 1) {
      return "has version " + document.value("version", Json()).dump() + ", wanted 1";
    }
    if (nlohmann::ordered_json* place = place_of(path.filename().string())) *place = std::move(document);
    return std::nullopt;
  }

  // Where contents_ keeps the document of that name; null: nowhere.
  nlohmann::ordered_json* place_of(const std::string& name) {
    if (name == "environment.json") return &contents_.environment;
    if (name == "result.json") return &contents_.result;
    if (name == "profile.json") return &contents_.profile;
    return name == "ledger.json" ? &contents_.ledger : nullptr;
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
    if (contents_.is_of_script()) wanted.clear();
    const std::string verb = contents_.verb();
    if (verb == "train") wanted.insert(wanted.end(), {"result.json", "report.html"});
    const bool tunes_itself = verb == "train" && contents_.recipe && contents_.recipe->tune.online;
    if (tunes_itself) wanted.insert(wanted.end(), {"tuned.toml", "ledger.json"});
    if (verb == "tune") wanted.insert(wanted.end(), {"tuned.toml", "ledger.json", "report.html"});
    if (verb == "profile") wanted.insert(wanted.end(), {"profile.json", "trace.json", "report.html"});
    for (const std::string& name : wanted) {
      std::error_code ignored;  // A file that cannot be looked at is as good as missing.
      if (fs::exists(folder_ / name, ignored)) continue;
      add("missing", name + " is missing",
          verb.empty()      ? "Is this a run folder?"
          : verb == "train" ? "The run was killed or failed before it was written: go on with train --resume."
                            : "The run ended before it was written.");
    }
    const std::vector<fs::path> all = files();
    const bool checkpoint = std::any_of(all.begin(), all.end(), [](const fs::path& path) {
      return path.filename().string().starts_with("checkpoint-") && path.extension() == ".safetensors";
    });
    if (verb == "train" && !checkpoint) {
      add("missing", "there is no checkpoint", "The run ended before its first epoch did; nothing can be resumed.");
    }
  }

  void read_log() {
    constexpr std::streamoff kTail = 64 * 1024;
    std::ifstream file(folder_ / "log.txt", std::ios::binary | std::ios::ate);
    if (!file) return;  // A folder of old, or of another verb: nothing to tell.
    file.seekg(std::max<std::streamoff>(0, static_cast<std::streamoff>(file.tellg()) - kTail));
    contents_.log.assign(std::istreambuf_iterator<char>(file), {});
  }

  fs::path folder_;
  RunContents contents_;
  std::vector<Finding> findings_;
};

}  // namespace

RunReport check_run(const fs::path& run, const Machine& here) {
  std::error_code error;  // What cannot be looked at cannot be listed either, and that says why.
  if (fs::is_regular_file(run, error)) return check_summary(run, here);
  RunCheck check(run);
  RunReport report;
  report.findings = check.findings();
  for (Finding& finding : content_findings(check.contents(), here)) report.findings.push_back(std::move(finding));
  report.facts = run_facts(check.contents());
  report.proposals = loading_proposals(check.contents(), here);
  report.figures = run_figures(check.contents());
  return report;
}

}  // namespace headrace
