#include "core/exec/cores.h"

#include <headrace/options.h>

#include <algorithm>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::int64_t kThreadsMax = 4096;

int checked(const char* what, std::int64_t requested) {
  if (requested < 0 || requested > kThreadsMax) {
    fail(ErrorCode::invalid_argument, "exec: {} {} threads wanted, 0 to {} can be had", requested, what, kThreadsMax);
  }
  return static_cast<int>(requested);
}

const char* plural(std::int64_t count) {
  return count == 1 ? "" : "s";
}

}  // namespace

CoreSplit split_cores(int usable, std::int64_t compute_requested, std::int64_t loading_requested) {
  HEADRACE_CHECK(usable >= 1, "{} usable cores", usable);
  const int compute = checked("compute", compute_requested);
  const std::int64_t loading = loading_requested == AUTOTUNE ? 1 : loading_requested;
  return {.compute = compute == 0 ? usable : compute, .loading = checked("loading", loading)};
}

std::vector<CoreSplit> splits_to_try(int usable) {
  HEADRACE_CHECK(usable >= 1, "{} usable cores", usable);
  std::vector<CoreSplit> splits;
  if (usable == 1) return splits;
  splits.push_back({.compute = usable - usable / 2, .loading = usable / 2});
  splits.push_back({.compute = 1, .loading = usable});
  for (const int loading : {usable - usable / 4, usable / 4}) {
    const bool is_known = std::any_of(splits.begin(), splits.end(),
                                      [loading](const CoreSplit& split) { return split.loading == loading; });
    if (loading > 0 && !is_known) splits.push_back({.compute = usable - loading, .loading = loading});
  }
  return splits;
}

std::string oversubscription(std::int64_t workers, std::int64_t compute_threads, int usable) {
  HEADRACE_CHECK(usable >= 1, "{} usable cores", usable);
  const std::int64_t all = std::int64_t{checked("loading", workers)} + checked("compute", compute_threads);
  const std::int64_t most = std::int64_t{2} * usable;
  if (all <= most) return "";
  return fmt::format("{} loader worker{} and {} compute thread{} share {} usable core{}; wanted at most {} together",
                     workers, plural(workers), compute_threads, plural(compute_threads), usable, plural(usable), most);
}

}  // namespace headrace
