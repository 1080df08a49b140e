#include "engine/assembly/run_settings.h"

#include <string>
#include <utility>

#include "core/hardware/child_threads.h"
#include "core/hardware/scheduling.h"

namespace headrace {

RunSettings::Changes::~Changes() {
  for (auto change = all.rbegin(); change != all.rend(); ++change) change->undo();
}

RunSettings::RunSettings(const ComputeOptions& compute) {
  // First what the system may find no such thing for.
  if (!compute.affinity.empty()) note("compute.affinity", set_affinity(compute.affinity));
  if (compute.niceness != AUTOTUNE) note("compute.niceness", set_niceness(compute.niceness));
  if (compute.child_threads > 0) note("compute.child_threads", set_child_threads(compute.child_threads));
}

void RunSettings::note(const char* key, HardwareChange change) {
  const HardwareSetting& setting = change.setting();
  // A list of cores may be written in other ways than the system tells it, and a node by its name.
  const bool holds = setting.how != SettingHow::not_applied;
  std::string reason = setting.reason;
  if (setting.how == SettingHow::for_children) reason = to_string(setting.how);
  applied_.push_back({key, setting.requested, holds ? setting.requested : setting.now, std::move(reason)});
  changes_.all.push_back(std::move(change));
}

}  // namespace headrace
