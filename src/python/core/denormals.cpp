#include "python/core/denormals.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cfenv>
#include <limits>

namespace headrace::python {
namespace {

// Runs `work` in so many threads, the caller's among them: those that its operators compute in. libgomp's; LLVM's
// OpenMP has it by the same name.
using RunInTeam = void (*)(void (*work)(void*), void* data, unsigned threads, unsigned flags);

struct Shared {
  std::fenv_t mode;
  std::atomic<int> reached = 0;  // Threads.
};

void take_float_mode(void* data) {
  auto& shared = *static_cast<Shared*>(data);
  std::fesetenv(&shared.mode);
  ++shared.reached;
}

}  // namespace

bool flushes_denormals() {
  volatile float smallest = std::numeric_limits<float>::min();
  return smallest / 2 == 0;
}

// By name: the OpenMP is torch's own, which shows it to the whole process.
std::string share_float_mode(int threads) {
  if (threads <= 1) return "";
  const auto run_in_team = reinterpret_cast<RunInTeam>(::dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  if (run_in_team == nullptr) return "torch's other compute threads cannot be reached: this process shows no OpenMP";
  Shared shared;
  std::fegetenv(&shared.mode);
  run_in_team(&take_float_mode, &shared, static_cast<unsigned>(threads), 0);
  if (shared.reached == threads) return "";
  return fmt::format("{} of torch's {} compute threads were reached", shared.reached.load(), threads);
}

}  // namespace headrace::python
