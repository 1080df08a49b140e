// The headrace executable: understands the command line and hands it to a verb.
#include <fcntl.h>
#include <headrace/error.h>
#include <strings.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "app/cli/arguments.h"
#include "app/cli/compare.h"
#include "app/cli/console.h"
#include "app/cli/doctor.h"
#include "app/cli/explain.h"
#include "app/cli/pack.h"
#include "app/cli/recipe_from_data.h"
#include "app/cli/torch_folder.h"
#include "app/cli/torch_library.h"
#include "app/recipe/recipe.h"
#include "core/exec/stop.h"

namespace headrace {
namespace {

// What --version says about LibTorch.
std::string torch_version() {
  const std::string version(torch_built_for());
  return version.empty() ? "not built" : version + " (loaded on demand)";
}

// Says that this process is the one that was run again. Read and removed first thing, so that no child inherits it.
constexpr const char* kRunAgain = "HEADRACE_RUN_AGAIN";

// A closed stdin, stdout or stderr would give its number to the next file opened, and our words would go there. Opened
// the wrong way round, writing to it keeps failing as it did.
void keep_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    if (::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY) != descriptor) std::abort();
  }
}

// libgomp reads OMP_WAIT_POLICY once, when it is loaded. Comes back when the policy holds or cannot be made to.
void apply_wait_policy(WaitPolicy policy, char** argv, bool run_again, Console& console) {
  if (policy == WaitPolicy::system) return;
  const char* wanted = policy == WaitPolicy::active ? "ACTIVE" : "PASSIVE";
  const char* found = std::getenv("OMP_WAIT_POLICY");
  if (found != nullptr && ::strcasecmp(found, wanted) == 0) return;
  if (run_again) {
    console.warning("compute.wait_policy is not applied: OMP_WAIT_POLICY did not reach the process that was run again");
    return;
  }
  ::setenv("OMP_WAIT_POLICY", wanted, 1);
  ::setenv(kRunAgain, "1", 1);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) ::execv(self.c_str(), argv);
  const std::string reason = error ? error.message() : std::generic_category().message(errno);
  ::unsetenv(kRunAgain);
  console.warning("compute.wait_policy is not applied: cannot run the executable again: " + reason);
}

int run(const Invocation& invocation, char** argv, bool run_again) {
  Console console{invocation};
  if (invocation.verb == "explain") return console.finish(run_explain(invocation, console));
  if (invocation.verb == "doctor") return console.finish(run_doctor(invocation, console));
  if (invocation.verb == "compare") return console.finish(run_compare(invocation, console));
  if (invocation.verb == "pack") return console.finish(run_pack(invocation, console));
  // Faults of the recipe are reported before LibTorch is loaded, and the wait policy must be known by then.
  const LoadedRecipe loaded = recipe_of(invocation);
  apply_wait_policy(loaded.recipe.compute.wait_policy, argv, run_again, console);
  return run_torch_verb(invocation);
}

int run(int argc, char** argv, bool run_again) {
  const auto parsed = parse_arguments(std::vector<std::string>(argv, argv + argc), torch_version());
  if (const auto* invocation = std::get_if<Invocation>(&parsed)) return run(*invocation, argv, run_again);
  const Answer& answer = std::get<Answer>(parsed);
  Invocation invocation;
  if (answer.exit_code != kExitDone) invocation.json = "-";  // Not what was asked for: to stderr.
  Console console{invocation};
  console.result(answer.text);
  return console.finish(answer.exit_code);
}

int report(const std::string& message, int exit_code) {
  const Invocation invocation;
  Console(invocation).error(message);
  return exit_code;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using namespace headrace;
  keep_standard_descriptors();
  install_stop_signals();
  const bool run_again = std::getenv(kRunAgain) != nullptr;
  ::unsetenv(kRunAgain);
  try {
    return run(argc, argv, run_again);
  } catch (const Error& error) {
    return report(error.what(), error.code() == ErrorCode::invalid_argument ? kExitUsage : kExitFailed);
  } catch (const std::exception& error) {
    return report(error.what(), kExitFailed);
  }
}
