#include "core/hardware/hardware_change.h"

#include <utility>

namespace headrace {

const char* to_string(SettingHow how) noexcept {
  switch (how) {
    case SettingHow::by_call:
      return "by call";
    case SettingHow::for_children:
      return "for child processes";
    case SettingHow::not_applied:
      return "not applied";
  }
  return "not applied";
}

HardwareChange::HardwareChange(HardwareSetting setting, std::function<HardwareSetting()> undo)
    : setting_(std::move(setting)), undo_(std::move(undo)) {}

const HardwareSetting& HardwareChange::undo() {
  if (!undone_) undone_ = undo_();
  return *undone_;
}

}  // namespace headrace
