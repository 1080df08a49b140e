// The flags of the verb compare.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "insight/compare/metric_rule.h"
#include "insight/compare/run_pairs.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace headrace {

struct CompareArguments {
  std::string old_arm, new_arm;    // As written; with --aa only the first.
  std::vector<std::string> words;  // Behind "--": a command for commits, arguments for anything else.
  std::string build;               // Of commits: a line for sh, run in each checkout; empty: nothing is built.
  std::string python = "python3";
  bool train = false;       // Recipes are trained to their end, not profiled.
  bool aa = false;          // OLD against itself.
  std::int64_t pairs = 60;  // At most.
  double limit_s = 600;     // For one run.
  std::uint64_t seed = 0;   // Of the order within pairs; 0: by the clock.
  MetricChoices choices;
  double false_discovery_rate = kFalseDiscoveryRate;
  std::filesystem::path junit, markdown, html, history, save;  // Empty: none.
};

// Adds the flags to a command line, and reads them once it is parsed. Keep it as long as the App.
class CompareFlags {
 public:
  explicit CompareFlags(CLI::App& app);
  // Error{invalid_argument} names the flag, what was wanted and what was found.
  CompareArguments arguments(std::vector<std::string> words) const;

 private:
  CLI::Option* add(const char* flag, const char* type, const std::string& sentence);
  std::optional<std::string> text_of(const char* flag) const;

  CLI::App& app_;
  std::string old_arm_, new_arm_;
  std::deque<std::string> texts_;  // A deque: CLI11 keeps references.
  bool train_ = false, aa_ = false;
};

}  // namespace headrace
