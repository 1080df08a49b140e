// The GPU by NVML, NVIDIA's library of its driver, opened at run time: nothing is linked and nothing needs it.
#pragma once

#include <string>

namespace headrace {

// The functions of nvml.h that are called here; every one returns 0 for success.
struct NvmlTable {
  int (*init)();
  int (*shutdown)();
  const char* (*error_text)(int);
  int (*device_count)(unsigned*);
  int (*device_at)(unsigned, void**);
  int (*device_name)(void*, char*, unsigned);
  int (*device_memory)(void*, void*);  // Fills three unsigned 64-bit numbers; the first is the total.
  int (*device_capability)(void*, int*, int*);
  int (*driver_version)(char*, unsigned);
};

// "NVIDIA H200, 139.8 GiB, compute capability 9.0, driver 550.54", or "unavailable: " and why.
std::string describe_gpu(const NvmlTable& nvml);
// The same of the library of that name.
std::string describe_gpu(const std::string& library);

}  // namespace headrace
