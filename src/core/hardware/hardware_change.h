// A setting of the process or of its children that was changed: what was asked for, what holds, and the way back.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace headrace {

enum class SettingHow {
  by_call,       // It holds for this process, by a call of the operating system.
  for_children,  // An environment variable: processes that are started from now on read it, this one has read it
                 // before.
  not_applied,
};

// "by call", "for child processes", "not applied".
const char* to_string(SettingHow how) noexcept;

struct HardwareSetting {
  std::string name;       // "niceness".
  std::string requested;  // As written: "5", "0-3,6".
  std::string before;     // As the system told it before the change; where threads differ, each value once.
  std::string now;        // As the system tells it after the change.
  SettingHow how = SettingHow::not_applied;
  std::string reason;  // Why it is not applied, or why it cannot be undone; else empty.
};

// Not thread-safe. Its destructor undoes nothing.
class HardwareChange {
 public:
  // `undo` puts back what was there before the change, and tells what came of it. It throws nothing but bad_alloc.
  HardwareChange(HardwareSetting setting, std::function<HardwareSetting()> undo);

  const HardwareSetting& setting() const noexcept { return setting_; }
  // `requested` is what was there before the change, `now` what the system tells after this. A second call changes
  // nothing and tells the same.
  const HardwareSetting& undo();

 private:
  HardwareSetting setting_;
  std::function<HardwareSetting()> undo_;
  std::optional<HardwareSetting> undone_;  // nullopt: not yet.
};

}  // namespace headrace
