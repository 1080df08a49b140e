#include "core/hardware/nvidia_devices.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/hardware/detail/system_text.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNvidia = "0x10de";
constexpr std::string_view kDisplayController = "0x03";  // The first of three bytes: VGA, 3D and others.

bool is_gpu(const fs::path& device) {
  const std::string vendor = detail::read_system_text((device / "vendor").string()).value_or("");
  const std::string kind = detail::read_system_text((device / "class").string()).value_or("");
  return detail::trimmed(vendor) == kNvidia && kind.rfind(kDisplayController, 0) == 0;
}

}  // namespace

NvidiaDevices nvidia_devices(const std::string& root) {
  NvidiaDevices found;
  std::error_code error;  // Of a machine without a PCI bus.
  for (fs::directory_iterator entry(root + "/sys/bus/pci/devices", error), end; !error && entry != end;
       entry.increment(error)) {
    if (is_gpu(entry->path())) found.addresses.push_back(entry->path().filename().string());
  }
  std::sort(found.addresses.begin(), found.addresses.end());
  found.has_kernel_driver = detail::read_system_text(root + "/proc/driver/nvidia/version").has_value();
  return found;
}

}  // namespace headrace
