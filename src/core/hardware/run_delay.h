// How long the calling thread was ready to run and had no core, as the kernel's scheduler counts it.
//
// From /proc/thread-self/schedstat (kernels with CONFIG_SCHED_INFO): "on-CPU ns, waiting ns, turns". One pread, about a
// microsecond.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/descriptor.h"

namespace headrace {

// The second of the file's three numbers, in nanoseconds. nullopt: the text is not such a file.
std::optional<std::int64_t> parse_run_delay(std::string_view text);

// Of the thread that builds it, read from any thread as long as that one lives.
class RunDelay {
 public:
  // `root` is prefixed to the path, for tests on a fake tree.
  explicit RunDelay(const std::string& root = "");
  // Since the thread began. nullopt: the kernel does not tell, or the thread has ended.
  std::optional<std::int64_t> ns() const;

 private:
  Descriptor file_;
};

}  // namespace headrace
