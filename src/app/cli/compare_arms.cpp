#include "app/cli/compare_arms.h"

#include <headrace/report.h>
#include <unistd.h>

#include <span>
#include <system_error>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "data/store/file_name.h"
#include "insight/compare/stored_runs.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kFileBytesMax = 1LL << 30;
constexpr std::size_t kShortHash = 8, kShortCommit = 12;
constexpr const char* kProgramsOfBuild[] = {"bin/headrace", "build/release/bin/headrace"};

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

bool is_program(const fs::path& path) {
  return is_file(path) && ::access(path.c_str(), X_OK) == 0;
}

// By its bytes: what lies under one name today and tomorrow need not be one build.
std::string label_of_file(const std::string& text, const fs::path& path) {
  const std::string content = read_file(path, kFileBytesMax);
  return fmt::format("{}@{}", printable_name(text), hex(xxh3(std::as_bytes(std::span(content)))).substr(0, kShortHash));
}

std::string this_program() {
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  if (error) fail(ErrorCode::io, "compare: the system does not tell which program this is: {}", error.message());
  return self.string();
}

void add_words(const CompareArguments& arguments, std::vector<std::string>& command) {
  command.insert(command.end(), arguments.words.begin(), arguments.words.end());
}

std::vector<std::string> recipe_command(const std::string& recipe, const CompareArguments& arguments) {
  std::vector<std::string> command{this_program(), arguments.train ? "train" : "profile", recipe, "--out", kOutPlace,
                                   "--quiet"};
  // As many as a 99th percentile needs.
  if (!arguments.train) command.insert(command.end(), {"--steps", "100"});
  add_words(arguments, command);
  return command;
}

std::vector<std::string> program_command(const fs::path& program, const CompareArguments& arguments) {
  std::vector<std::string> command{fs::absolute(program).string()};
  add_words(arguments, command);
  bool says_out = false;
  for (const std::string& word : arguments.words) says_out = says_out || word.find("--out") == 0;
  // Of ours it is known where its figures go.
  if (program.filename() == "headrace" && !says_out) command.insert(command.end(), {"--out", kOutPlace, "--quiet"});
  return command;
}

// The whole name of a commit; empty: git knows none by this text here, or there is no git.
std::string commit_named(const std::string& text, double limit_s) {
  const TemporaryFolder folder;
  const fs::path log = folder.path() / "log.txt";
  const ComparedCommand git{.name = "git rev-parse",
                            .arguments = {"git", "rev-parse", "--verify", "--quiet", text + "^{commit}"},
                            .folder = {}};
  const auto finished = run_logged(git, log, folder.path() / "result", limit_s);
  if (!finished || finished->status.code != 0 || finished->status.signal != 0) return "";
  return last_line_of(log);
}

ComparedArm commit_arm(const std::string& name, const std::string& text, const CompareArguments& arguments) {
  const std::string commit = commit_named(text, arguments.limit_s);
  if (commit.empty()) {
    fail(ErrorCode::not_found,
         "compare: {} is \"{}\", which is no recipe (.toml), script (.py), program, build, run folder, .json or .jsonl "
         "file, or commit of a git repository here",
         name, printable_name(text));
  }
  if (arguments.words.empty()) {
    fail(ErrorCode::invalid_argument,
         "compare: {} is the commit {}, and nothing says what to run in it; wanted a command behind --", name,
         printable_name(text));
  }
  ComparedArm arm{.kind = ArmKind::commit,
                  .label = fmt::format("{}@{}", printable_name(text), commit.substr(0, kShortCommit)),
                  .command = {},
                  .path = {},
                  .commit = commit};
  arm.command.arguments = arguments.words;
  return arm;
}

ComparedArm arm_of_path(const std::string& text, const CompareArguments& arguments) {
  const fs::path path = text;
  ComparedArm arm{
      .kind = ArmKind::program, .label = label_of_file(text, path), .command = {}, .path = path, .commit = {}};
  if (path.extension() == ".toml") {
    arm.kind = ArmKind::recipe;
    arm.command.arguments = recipe_command(text, arguments);
  } else if (path.extension() == ".py") {
    arm.kind = ArmKind::script;
    arm.command.arguments = {arguments.python, text};
    add_words(arguments, arm.command.arguments);
  } else {
    arm.command.arguments = program_command(path, arguments);
  }
  return arm;
}

ComparedArm stored_arm(const std::string& text) {
  return {.kind = ArmKind::stored, .label = printable_name(text), .command = {}, .path = text, .commit = {}};
}

}  // namespace

const char* to_string(ArmKind kind) noexcept {
  switch (kind) {
    case ArmKind::stored:
      return "stored runs";
    case ArmKind::recipe:
      return "a recipe";
    case ArmKind::script:
      return "a script";
    case ArmKind::program:
      return "a program";
    case ArmKind::commit:
      return "a commit";
  }
  return "";
}

ComparedArm arm_of(const std::string& name, const std::string& text, const CompareArguments& arguments) {
  const fs::path path = text;
  std::optional<ComparedArm> arm;
  std::error_code ignored;
  if (path.extension() == ".toml" || path.extension() == ".py" || is_program(path)) arm = arm_of_path(text, arguments);
  for (const char* program : kProgramsOfBuild) {
    if (!arm && is_program(path / program)) arm = arm_of_path((path / program).string(), arguments);
  }
  if (!arm && is_stored(path)) arm = stored_arm(text);
  if (!arm && fs::is_directory(path, ignored)) {
    fail(ErrorCode::not_found, "compare: {} is the folder {}, which has no result.json, profile.json or bin/headrace",
         name, printable_name(text));
  }
  if (!arm) arm = commit_arm(name, text, arguments);
  arm->command.name = fmt::format("{} ({})", name, arm->label);
  return *arm;
}

std::optional<std::unique_ptr<TemporaryFolder>> prepare(ComparedArm& arm, const CompareArguments& arguments) {
  if (arm.kind != ArmKind::commit) return std::unique_ptr<TemporaryFolder>();
  auto folder = std::make_unique<TemporaryFolder>();
  const fs::path tree = folder->path() / "tree", log = folder->path() / "log.txt", tar = folder->path() / "tree.tar";
  fs::create_directory(tree);
  const ComparedCommand pack{.name = "git archive of " + arm.command.name,
                             .arguments = {"git", "archive", "--output", tar.string(), arm.commit},
                             .folder = {}};
  const ComparedCommand unpack{
      .name = "tar of " + arm.command.name, .arguments = {"tar", "-x", "-f", tar.string()}, .folder = tree};
  const ComparedCommand build{
      .name = "the build of " + arm.command.name, .arguments = {"sh", "-c", arguments.build}, .folder = tree};
  // Whether it was run to its end: a signal may have asked us to stop.
  const auto is_run = [&](const ComparedCommand& step) {
    return run_to_success(step, log, folder->path() / "result", arguments.limit_s).has_value();
  };
  if (!is_run(pack) || !is_run(unpack)) return std::nullopt;
  if (!arguments.build.empty() && !is_run(build)) return std::nullopt;
  arm.command.folder = tree;
  return folder;
}

std::string config_of(const ComparedArm& arm, const CompareArguments& arguments) {
  std::string text = arm.kind == ArmKind::recipe && arguments.train ? "training of a recipe" : to_string(arm.kind);
  for (const std::string& word : arguments.words) text += " " + without_credentials(word);
  return printable_name(text);
}

}  // namespace headrace
