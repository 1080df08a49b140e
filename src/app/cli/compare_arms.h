// What OLD and NEW of `headrace compare` are.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "app/cli/compare_arguments.h"
#include "app/cli/compare_run.h"
#include "core/base/temporary_folder.h"

namespace headrace {

enum class ArmKind { stored, recipe, script, program, commit };
const char* to_string(ArmKind kind) noexcept;

struct ComparedArm {
  ArmKind kind;
  // With what tells one build of it from another: "a.toml@1a2b3c4d", by its bytes; "main@1a2b3c4d5e6f", by its commit.
  std::string label;
  ComparedCommand command;     // Of stored runs empty.
  std::filesystem::path path;  // Of stored runs.
  std::string commit;          // Of a commit: its whole name.
};

// `name` is "OLD" or "NEW", `text` what stands there: a recipe (.toml), a script (.py), stored runs (is_stored()), an
// executable file, or a folder with bin/headrace or build/release/bin/headrace, or what git calls a commit in the
// current folder. Runs git where it is nothing else. Error{not_found}: none of these; Error{invalid_argument}: a commit
// without a command.
ComparedArm arm_of(const std::string& name, const std::string& text, const CompareArguments& arguments);

// Makes a commit ready to run: unpacks it (git archive) to a new folder, builds it there, and has the command run in
// it. Other kinds are ready. The folder lives as long as what is returned. nullopt: a signal asked us to stop.
// Error{io} with the last line: git or the build failed.
std::optional<std::unique_ptr<TemporaryFolder>> prepare(ComparedArm& arm, const CompareArguments& arguments);

// What is compared, without the arms: commands that are alike have one history.
std::string config_of(const ComparedArm& arm, const CompareArguments& arguments);

}  // namespace headrace
