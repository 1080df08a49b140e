// A run's folder: locked while the run lives, with the resolved recipe, the log and the environment in it.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "app/cli/invocation.h"
#include "app/recipe/recipe.h"
#include "core/base/files.h"

namespace headrace {

class RunFolder {
 public:
  // --out DIR, or runs/<recipe name>/<UTC time>/ (with --resume the first of these that has a checkpoint: the target of
  // runs/<recipe name>/started, of runs/<recipe name>/latest, the one whose name is last). Creates it, takes
  // <folder>/lock (Error{io} when another process holds it, or the folder cannot be written), removes what a killed
  // process left half-written there, writes recipe.toml (resolved, each key with its origin) and environment.json
  // (machine, build, command, and the few environment variables that change how a job runs; never the whole
  // environment), and points runs/<recipe name>/started to the folder. Error{not_found}: nothing to resume.
  RunFolder(const Invocation& invocation, const LoadedRecipe& recipe);

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path file(const std::string& name) const { return path_ / name; }
  // The run is whole: runs/<recipe>/latest points to it from now on (only for default folders).
  void mark_whole();

 private:
  std::filesystem::path path_;
  std::filesystem::path latest_;  // Empty for --out.
  std::unique_ptr<FileLock> lock_;
};

}  // namespace headrace
