#include "insight/monitor/step_memory.h"

#include <headrace/trace.h>

#include <algorithm>
#include <mutex>
#include <stop_token>
#include <thread>

#include "core/base/condition_variable.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"

namespace headrace {

struct StepMemoryReader::Impl {
  explicit Impl(std::chrono::nanoseconds every) : interval(every) {
    if (every.count() <= 0) {
      fail(ErrorCode::invalid_argument, "monitor: interval: wanted above 0 ns, found {}", every.count());
    }
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  void run(const std::stop_token& stop) {
    name_this_thread("step memory");
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      read();
      ended.wait_for(lock, stop, interval, [] { return false; });
    }
  }

  // The caller holds the lock. false: the system does not tell.
  bool read() {
    const std::optional<std::int64_t> resident = resident_memory();
    if (!resident) return false;
    memory.current = *resident;
    memory.peak = std::max(memory.peak, *resident);
    sum += static_cast<double>(*resident);
    ++count;
    return true;
  }

  std::optional<StepMemory> take() {
    const std::lock_guard lock(mutex);
    if (!read()) return std::nullopt;
    memory.mean = sum / static_cast<double>(count);
    const StepMemory result = memory;
    memory = {};
    sum = 0;
    count = 0;
    return result;
  }

  const std::chrono::nanoseconds interval;
  std::mutex mutex;  // Guards everything down to `count`.
  StepMemory memory;
  double sum = 0;
  std::int64_t count = 0;
  std::condition_variable_any ended;
  std::jthread thread;  // Last: it stops first.
};

StepMemoryReader::StepMemoryReader(std::chrono::nanoseconds interval) : impl_(std::make_unique<Impl>(interval)) {}
StepMemoryReader::~StepMemoryReader() = default;

std::optional<StepMemory> StepMemoryReader::take() {
  return impl_->take();
}

}  // namespace headrace
