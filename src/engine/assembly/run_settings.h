// What a recipe changes in the whole process for as long as a verb runs: how the system schedules it, what its children
// find in their environment.
#pragma once

#include <headrace/error.h>

#include <vector>

#include "core/hardware/compute_options.h"
#include "core/hardware/hardware_change.h"

namespace headrace {

// Applies compute.affinity, compute.niceness and compute.child_threads, and undoes them in reverse at its end; by then
// threads, masks and variables are as they were, but for a raised niceness without the right to lower it. To be made
// before the machine is detected, so that it has the cores of the mask, and while no other thread reads the
// environment. Processes that inherit them may apply them again. Error{invalid_argument}: cores that are not there;
// nothing is changed then.
class RunSettings {
 public:
  explicit RunSettings(const ComputeOptions& compute);

  // Of what the recipe asks for, and nothing else. The reason of one that holds says what limits it: that it is for
  // child processes, or cannot be undone.
  const std::vector<Applied>& applied() const noexcept { return applied_; }

 private:
  // Undone last to first.
  struct Changes {
    std::vector<HardwareChange> all{};

    Changes() = default;
    ~Changes();
    Changes(const Changes&) = delete;
    Changes& operator=(const Changes&) = delete;
  };

  void note(const char* key, HardwareChange change);

  Changes changes_;
  std::vector<Applied> applied_;
};

}  // namespace headrace
