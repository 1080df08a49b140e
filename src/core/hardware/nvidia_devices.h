// NVIDIA's GPUs as the PCI bus has them, and whether the kernel has a driver of theirs: no library of the driver is
// asked (core/hardware/nvml.h does), so this tells why that one finds none.
#pragma once

#include <string>
#include <vector>

namespace headrace {

struct NvidiaDevices {
  std::vector<std::string> addresses;  // On the PCI bus, sorted: "0000:17:00.0". A container may see its host's.
  bool has_kernel_driver = false;
};

// `root` is prefixed to /proc and /sys, for tests on a fake tree. What cannot be read is not there. Any thread.
NvidiaDevices nvidia_devices(const std::string& root = "");

}  // namespace headrace
