// What a device can do beside its operators: work captured once and run again, batches copied ahead, values read
// without waiting, memory. The CPU's is here, CUDA's in the plugin libheadrace_gpu.so (src/gpu), which is opened when
// it is asked for first.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <headrace/device_figures.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// Work that was captured. Not thread-safe; ends before its device's Accelerator.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  // Queues all of it on the current stream, in order with what was queued there, and does not wait. Operators run on
  // the memory that they were captured with; random numbers go on from the device's default generator.
  virtual void replay() = 0;
  // Device memory that was reserved while it was captured, and that is its own as long as it lives.
  virtual std::int64_t pool_bytes() const = 0;
};

// Values on their way to the CPU.
class HostCopy {
 public:
  virtual ~HostCopy() = default;
  virtual const at::Tensor& values() = 0;  // On the CPU; waits until they are there.
};

// A place in what is queued on a device. Not thread-safe; wait() alone may be called by several threads.
class DeviceMoment {
 public:
  virtual ~DeviceMoment() = default;
  virtual bool is_passed() const = 0;  // By the device; does not wait.
  virtual void wait() const = 0;       // Until it is.
  // By the device's clock, to half a microsecond or so; both are of this device and passed.
  virtual double seconds_since(const DeviceMoment& earlier) const = 0;
};

// Batches of one form, copied to a device one behind the other. Not thread-safe.
class BatchTransfer {
 public:
  virtual ~BatchTransfer() = default;
  // Copies each of `from`, which may lie on the CPU or on the device, to its place in `to`, tensors of the same shapes
  // and dtypes on the device, in order with the current stream, and does not wait. What lies on the CPU goes by way of
  // two sets of buffers in turn, on a stream of its own, so that it overlaps with what the device still has to do; it
  // is held until it is copied, and blocks of pools are not marked as being read then (core/memory/page_lock.h). From
  // memory that is not page-locked the copy makes the caller wait for that copy alone.
  virtual void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) = 0;
};

// Of one device. Thread-safe; run_aside() and capture() wait for each other.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual bool captures() const = 0;  // Whether capture() is there at all.

  // Runs `work` now, on the stream that capture() captures on, between what is on the current stream before and after.
  // Libraries set up what they keep for a stream then. What `work` throws goes on.
  virtual void run_aside(const std::function<void()>& work) = 0;
  // Runs `work` on the host, which queues operators, and records those in the place of running them: it must neither
  // read a value of the device nor wait for it. What it throws goes on, and so does c10::Error of what cannot be
  // captured; the device and its default generator can be used as before then.
  virtual std::unique_ptr<CapturedWork> capture(const std::function<void()>& work) = 0;

  virtual std::unique_ptr<BatchTransfer> batch_transfer() = 0;
  // As values are at this place of the current stream.
  virtual std::unique_ptr<HostCopy> copy_to_host(const at::Tensor& values) = 0;
  // Copies all of `from` to elements of `to` from `place` on, on the current stream and without waiting: both dense, of
  // one dtype, on the device. For what an operator's own time on the host is too long.
  virtual void copy_elements(const at::Tensor& from, const at::Tensor& to, std::int64_t place) = 0;

  // Behind all that is queued on the current stream by now. nullptr: that stream is captured, where there is none.
  virtual std::unique_ptr<DeviceMoment> moment() = 0;

  // nullopt: LibTorch has no caching allocator there, as on the CPU.
  virtual std::optional<DeviceMemory> memory() const = 0;
  virtual void reset_peak_memory() = 0;  // Each peak becomes what is held now.
  // Gives the driver back what is cached and no tensor has, after waiting for the device; other processes can have it.
  virtual void release_cache() = 0;
  // Segments and blocks of all devices of this kind as they are now, and what
  // torch.cuda.memory._record_memory_history() has recorded: a pickle of plain containers, as
  // torch.cuda.memory._dump_snapshot() writes. Error{unsupported}: as memory().
  virtual std::string memory_snapshot() const = 0;
};

// That of this device, the same each time; lives until the process ends. nullptr: there is none, and `reason` says why
// in a sentence's middle: "libheadrace_gpu.so is not beside libheadrace_torch.so". Thread-safe. Installs, with the
// first of CUDA, the page lock of the pools of host batches (core/memory/page_lock.h).
Accelerator* accelerator_of(c10::Device device, std::string& reason);

// For tests: the CPU's captures, by running `work` in the place of the first replay and again at each later one; else
// it says in an Error{unsupported} that a CPU captures nothing.
void let_cpu_capture(bool captures);

}  // namespace headrace
