// The GPU by NVML, NVIDIA's library of its driver, opened at run time: nothing is linked and nothing needs it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// The functions of nvml.h that are called here; every one returns 0 for success.
struct NvmlTable {
  int (*init)();
  int (*shutdown)();
  const char* (*error_text)(int);
  int (*device_count)(unsigned*);
  int (*device_at)(unsigned, void**);
  int (*device_name)(void*, char*, unsigned);
  int (*device_memory)(void*, void*);  // Fills three unsigned 64-bit numbers: total, free, used.
  int (*device_capability)(void*, int*, int*);
  int (*driver_version)(char*, unsigned);
  int (*device_use)(void*, void*);                   // Fills two unsigned numbers, percent: of compute, of memory.
  int (*device_power)(void*, unsigned*);             // Milliwatts.
  int (*device_temperature)(void*, int, unsigned*);  // Of sensor 0, the chip; degrees Celsius.
  int (*device_clock)(void*, int, unsigned*);        // MHz; 1: of the multiprocessors, 2: of the memory.
};

// What NVML tells of a GPU now; nullopt: it does not.
struct GpuFigures {
  std::optional<double> utilization;  // Share of the last sampling period, 1/6 to 1 s, with a kernel running, 0 to 1.
  std::optional<std::int64_t> memory_used, memory_total;  // Bytes, of all processes.
  std::optional<double> power_watts, temperature_celsius;
  std::optional<double> clock_hertz, memory_clock_hertz;
};

// One of this machine's GPUs. What the driver does not tell is 0, or nullopt.
struct GpuIdentity {
  std::string name;  // "NVIDIA H200".
  int capability_major = 0, capability_minor = 0;
  std::optional<std::int64_t> memory_total;  // Bytes.
};

// NVML, initialised from construction to destruction. figures() takes one thread at a time.
class Nvml {
 public:
  explicit Nvml(const NvmlTable& table);
  explicit Nvml(const std::string& library = "libnvidia-ml.so.1");
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // "NVIDIA H200, 139.8 GiB, compute capability 9.0, driver 550.54", or "unavailable: " and why.
  std::string description() const;
  // The first GPU in NVML's order, which CUDA_VISIBLE_DEVICES does not change. nullopt: there is none, as why_not()
  // says, or the driver does not tell its name.
  std::optional<GpuIdentity> first_device() const;
  // Why there are no figures, in the words of description(); empty: there are.
  std::string why_not() const;
  // One a GPU of this machine, whether this process uses it or not; empty where there are none.
  std::vector<GpuFigures> figures() const;

 private:
  void initialise();

  void* handle_ = nullptr;
  NvmlTable table_{};
  std::string reason_;  // Empty: it is initialised.
};

// Nvml(...).description().
std::string describe_gpu(const NvmlTable& nvml);
std::string describe_gpu(const std::string& library);

}  // namespace headrace
