#include "core/hardware/nvidia_devices.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/hardware/fake_root.h"

namespace headrace {
namespace {

using NvidiaDevicesTest = FakeRoot;

TEST_F(NvidiaDevicesTest, AreDisplayControllersOfTheirVendorAlone) {
  EXPECT_TRUE(nvidia_devices(root_).addresses.empty());
  const auto device = [this](const std::string& address, const std::string& vendor, const std::string& kind) {
    put("/sys/bus/pci/devices/" + address + "/vendor", vendor + "\n");
    put("/sys/bus/pci/devices/" + address + "/class", kind + "\n");
  };
  device("0000:65:00.0", "0x10de", "0x030200");
  device("0000:17:00.0", "0x10de", "0x030000");
  device("0000:17:00.1", "0x10de", "0x040300");  // The sound of a display.
  device("0000:00:02.0", "0x8086", "0x030000");
  const NvidiaDevices found = nvidia_devices(root_);
  EXPECT_EQ(found.addresses, (std::vector<std::string>{"0000:17:00.0", "0000:65:00.0"}));
  EXPECT_FALSE(found.has_kernel_driver);
  put("/proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n");
  EXPECT_TRUE(nvidia_devices(root_).has_kernel_driver);
}

}  // namespace
}  // namespace headrace
