#include "app/cli/run_folder.h"

#include <headrace/option_fields.h>
#include <headrace/option_text.h>
#include <headrace/report.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "app/cli/console.h"
#include "app/cli/environment.h"
#include "core/base/build_info.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail(ErrorCode::io, "cli: cannot make the run folder {}: {}", path.string(), error.message());
}

bool has_checkpoint(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().string().rfind("checkpoint-", 0) == 0 && entry->path().extension() == ".safetensors") {
      return true;
    }
  }
  return false;
}

// A recipe may be called anything; a folder may not.
std::string folder_name(const std::string& recipe_name) {
  return recipe_name.empty() || recipe_name.front() == '.' ? "recipe" + recipe_name : recipe_name;
}

fs::path fresh_folder(const fs::path& runs) {
  make_folder(runs);
  const std::string stamp = utc_stamp();
  for (int attempt = 1;; ++attempt) {
    const fs::path path = runs / (attempt == 1 ? stamp : fmt::format("{}-{}", stamp, attempt));
    std::error_code error;
    if (fs::create_directory(path, error)) return path;  // False without an error: another run of this second has it.
    if (error) fail(ErrorCode::io, "cli: cannot make the run folder {}: {}", path.string(), error.message());
  }
}

// A link is made aside and renamed, so that `link` always points somewhere.
void point_link(const fs::path& link, const fs::path& folder) {
  const fs::path aside = link.string() + "." + folder.filename().string();
  std::error_code error;
  fs::remove(aside, error);
  fs::create_directory_symlink(folder.filename(), aside, error);
  if (!error) fs::rename(aside, link, error);
  if (error) fail(ErrorCode::io, "cli: cannot point {} to {}: {}", link.string(), folder.string(), error.message());
}

fs::path folder_to_resume(const fs::path& runs) {
  std::error_code error;
  // Names tell the wall clock, which may have been set back between two runs: the links come first.
  for (const char* link : {"started", "latest"}) {
    const fs::path folder = fs::canonical(runs / link, error);
    if (!error && has_checkpoint(folder)) return folder;
  }
  std::vector<fs::path> folders;
  for (fs::directory_iterator entry(runs, error), end; !error && entry != end; entry.increment(error)) {
    if (!entry->is_symlink(error) && has_checkpoint(entry->path())) folders.push_back(entry->path());
  }
  if (folders.empty())
    fail(ErrorCode::not_found, "cli: nothing to resume: no run in {} has a checkpoint", runs.string());
  return *std::max_element(folders.begin(), folders.end());  // Named by UTC time.
}

// Without keys that secrets hide in: only variables of the allow-list, and URLs without password and query.
nlohmann::ordered_json environment_json(const Invocation& invocation) {
  const BuildInfo& build = build_info();
  nlohmann::ordered_json document{{"format", "headrace-environment"}, {"version", 1}, {"written", utc_text()}};
  document["command"] = nlohmann::ordered_json::array();
  for (const std::string& word : invocation.argv) document["command"].push_back(without_credentials(word));
  document["build"] = {
      {"version", build.version}, {"commit", build.commit}, {"compiler", build.compiler}, {"preset", build.preset}};
  document["machine"] = to_json(detect_machine());
  document["variables"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : job_variables()) document["variables"][name] = without_credentials(value);
  return document;
}

}  // namespace

RunFolder::RunFolder(const Invocation& invocation, const LoadedRecipe& recipe) {
  if (invocation.out) {
    path_ = *invocation.out;
    if (invocation.resume && !fs::exists(path_)) {
      fail(ErrorCode::not_found, "cli: nothing to resume: {} does not exist", path_.string());
    }
    make_folder(path_);
  } else {
    const fs::path runs = fs::path("runs") / folder_name(recipe.name);
    path_ = invocation.resume ? folder_to_resume(runs) : fresh_folder(runs);
    latest_ = runs / "latest";
  }
  lock_ = std::make_unique<FileLock>(file("lock"));
  remove_leftovers(path_);
  Recipe resolved = recipe.recipe;
  write_file(file("recipe.toml"), write_toml(fields_of(resolved), [&](const std::string& key) {
               const auto origin = recipe.origins.find(key);
               return origin == recipe.origins.end() ? "" : origin->second;
             }));
  write_file(file("environment.json"), json_text(environment_json(invocation)));
  if (!latest_.empty()) point_link(latest_.parent_path() / "started", path_);
}

void RunFolder::mark_whole() {
  if (!latest_.empty()) point_link(latest_, path_);
}

}  // namespace headrace
