// A command line, understood: what main() hands to the verb.
#pragma once

#include <headrace/trace_export.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/cli/compare_arguments.h"
#include "data/pack/pack_options.h"

namespace headrace {

enum class LogLevel { debug, info, warning, error };

// What `explain` shows: the keys of a recipe, or docs/options.md and docs/recipe.schema.json.
enum class ExplainForm { keys, markdown, schema };

enum class PackAction { write, index, verify, unpack };

// What `pack` is to do, and with what.
struct PackArguments {
  PackAction action = PackAction::write;
  std::string source;  // A data source; for verify and unpack the path of a pack.
  std::string target;  // The new pack or folder; empty where none is made.
  PackForm form = PackForm::stored;
  std::int64_t short_side = 0;          // 0: images keep their size.
  bool append = false;                  // Add to a pack that is whole.
  std::int64_t shard_mib = 0;           // 0: one file.
  std::optional<std::int64_t> threads;  // None: one a core.
};

// Of a process that `tune` starts for a trial; no person calls it, and --help does not name it.
inline constexpr std::string_view kTrialVerb = "trial-process";

struct Invocation {
  std::string verb;  // "train", "eval", "profile", "tune", "compare", "explain", "pack", "doctor"; kTrialVerb.
  std::filesystem::path recipe;  // Or the run folder, for doctor; empty: none given.
  // tune: --data and --model, in place of a recipe; both or neither.
  std::optional<std::filesystem::path> data;
  std::string model;
  std::vector<std::pair<std::string, std::string>> flags;  // Recipe keys set on the command line, in order.
  std::optional<std::string> json;                         // --json FILE; "-": stdout, everything else goes to stderr.
  std::optional<std::filesystem::path> out;                // --out DIR.
  bool dry_run = false;                                    // Check everything, say what would happen, run nothing.
  bool quiet = false;                                      // No progress, no tables; warnings and errors stay.
  bool resume = false;                                     // train
  std::optional<std::filesystem::path> checkpoint;         // eval
  std::int64_t steps = 60;                                 // profile: steps measured.
  TraceForm trace_form = TraceForm::chrome;                // profile: in which the trace is written besides.
  std::vector<std::pair<std::string, std::string>> settings;  // kTrialVerb: what the tuner has on top of the recipe.
  PackArguments pack;
  CompareArguments compare;
  LogLevel log_level = LogLevel::info;
  std::string key;  // explain: one key; empty: all.
  ExplainForm explain_form = ExplainForm::keys;
  std::vector<std::string> argv;  // As given, for the report's "reproduce" line.
};

inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitVerdict = 3;

}  // namespace headrace

// The verbs that need LibTorch, in libheadrace_torch.so; main opens it on demand. Returns the exit code; never throws.
extern "C" int headrace_run_verb(const headrace::Invocation* invocation);
