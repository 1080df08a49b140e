#include "app/cli/compare_arguments.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <utility>

#include "app/cli/flag_number.h"
#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::int64_t kPairsMax = 10'000;
constexpr double kLimitMax = 86'400;

[[noreturn]] void refuse(const std::string& flag, const std::string& wanted, const std::string& found) {
  fail(ErrorCode::invalid_argument, "compare: {} must be {}, found \"{}\" (see headrace compare --help)", flag, wanted,
       found);
}

// Without the locale, as from_chars reads.
std::optional<double> real(const std::string& text) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || stop != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

double real_in(const std::string& flag, const std::string& text, double low, double high) {
  const std::optional<double> value = real(text);
  if (!value || !(*value > low && *value < high)) {
    refuse(flag, fmt::format("a number above {} and below {}", low, high), text);
  }
  return *value;
}

std::vector<std::string> split(const std::string& flag, const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    if (end == begin) refuse(flag, "names with a comma between them", text);
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::set<std::string> names(const std::string& flag, const std::optional<std::string>& text) {
  if (!text) return {};
  const std::vector<std::string> parts = split(flag, *text);
  return {parts.begin(), parts.end()};
}

std::map<std::string, double> tolerances(const std::optional<std::string>& text) {
  std::map<std::string, double> found;
  if (!text) return found;
  for (const std::string& part : split("--tolerance", *text)) {
    const std::size_t equals = part.find('=');
    const std::optional<double> value = equals == std::string::npos ? std::nullopt : real(part.substr(equals + 1));
    if (!value || equals == 0) refuse("--tolerance", "METRIC=NUMBER,...", *text);
    found[part.substr(0, equals)] = *value;
  }
  return found;
}

}  // namespace

CompareFlags::CompareFlags(CLI::App& app) : app_(app) {
  app_.add_option(
          "old", old_arm_,
          "What is compared: a recipe (.toml), a script (.py), a program or the folder of its build, a commit; or "
          "stored runs: a run folder, a folder of these, a .json or .jsonl file.")
      ->required();
  app_.add_option(
      "new", new_arm_,
      "The same of what may have become worse. Words after -- are the command for commits, and arguments for "
      "anything else; {out} in them is a new folder for each run.");
  add("--build", "LINE", "Of commits: a line for sh that builds each, once, in a checkout of its own.");
  add("--python", "PROGRAM", "That runs scripts (default python3).");
  app_.add_flag("--train", train_,
                "Train recipes to their end, for accuracy and loss, in place of measuring 100 steps.");
  app_.add_flag("--aa", aa_, "Run OLD against itself, and tell how often this machine would raise a false alarm.");
  add("--pairs", "NUMBER", "Pairs of runs at most, 1 to 10000 (default 60); fewer where they decide it.");
  add("--limit-s", "SECONDS", "For one run or build (default 600).");
  add("--order-seed", "NUMBER", "Of the order within pairs, 1 to 2^62 (default: by the clock).");
  add("--metrics", "NAME,...", "Compare these alone; one that a run does not tell is a failure.");
  add("--tolerance", "NAME=NUMBER,...",
      "What of a change matters: a share (default 0.02), of accuracy and hit_rate a difference (default 0.005).");
  add("--higher-is-better", "NAME,...", "Of metrics whose names do not say so (accuracy, hit_rate and *_per_s do).");
  add("--absolute", "NAME,...", "Compare these metrics by differences, not by ratios: those that may be 0.");
  add("--false-discovery-rate", "NUMBER",
      "Of what is called regressed or improved, how much may be so wrongly (default 0.02).");
  add("--history", "FILE",
      "Add the verdict to this SQLite file, and look for changes that builds brought in small steps.");
  add("--save", "DIR", "Keep the runs there, as old.json and new.json.");
  add("--junit", "FILE", "Also write JUnit's XML.");
  add("--markdown", "FILE", "Also write Markdown, for a pull request.");
  add("--html", "FILE", "Also write a page with the pairs drawn.");
}

CLI::Option* CompareFlags::add(const char* flag, const char* type, const std::string& sentence) {
  return app_.add_option(flag, texts_.emplace_back(), sentence)
      ->type_name(type)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

std::optional<std::string> CompareFlags::text_of(const char* flag) const {
  const CLI::Option* option = app_.get_option(flag);
  if (option->count() == 0) return std::nullopt;
  return option->results().back();
}

CompareArguments CompareFlags::arguments(std::vector<std::string> words) const {
  CompareArguments found{.old_arm = old_arm_, .new_arm = new_arm_, .words = std::move(words)};
  if (aa_ != new_arm_.empty()) {
    refuse("NEW", aa_ ? "left out with --aa, which runs OLD against itself" : "there, or --aa in its place", new_arm_);
  }
  found.train = train_;
  found.aa = aa_;
  found.build = text_of("--build").value_or("");
  found.python = text_of("--python").value_or("python3");
  if (const auto text = text_of("--pairs")) found.pairs = number_in("compare: --pairs", *text, 1, kPairsMax);
  if (const auto text = text_of("--limit-s")) found.limit_s = real_in("--limit-s", *text, 0, kLimitMax);
  if (const auto text = text_of("--order-seed")) {
    found.seed = static_cast<std::uint64_t>(number_in("compare: --order-seed", *text, 1, 1LL << 62));
  }
  if (const auto text = text_of("--false-discovery-rate")) {
    found.false_discovery_rate = real_in("--false-discovery-rate", *text, 0, 1);
  }
  found.choices.only = names("--metrics", text_of("--metrics"));
  found.choices.higher_is_better = names("--higher-is-better", text_of("--higher-is-better"));
  found.choices.absolute = names("--absolute", text_of("--absolute"));
  found.choices.tolerances = tolerances(text_of("--tolerance"));
  check_choices(found.choices);
  found.history = text_of("--history").value_or("");
  found.save = text_of("--save").value_or("");
  found.junit = text_of("--junit").value_or("");
  found.markdown = text_of("--markdown").value_or("");
  found.html = text_of("--html").value_or("");
  return found;
}

}  // namespace headrace
