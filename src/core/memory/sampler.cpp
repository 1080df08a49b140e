#include "core/memory/sampler.h"

#include <headrace/trace.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/condition_variable.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"

namespace headrace {
namespace {

constexpr std::size_t kSamplesMax = 2048;
constexpr std::size_t kClassesMax = 12;

struct Sample {
  std::int64_t at_ns = 0;  // CLOCK_MONOTONIC.
  std::int64_t resident = 0;
  std::array<std::int64_t, kClassesMax> bytes{};  // By class; those that had no account then hold 0.
};

const Sample& larger(const Sample& first, const Sample& second) {
  return second.resident > first.resident ? second : first;
}

}  // namespace

struct MemorySampler::Impl {
  Impl(std::chrono::nanoseconds every, std::function<std::vector<AccountBytes>()> read)
      : interval(every), read_classes(std::move(read)), samples(kSamplesMax) {
    HEADRACE_CHECK(every.count() > 0, "an interval of {} ns", every.count());
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }

  void run(const std::stop_token& stop) {
    name_this_thread("memory");
    do {
      sample();
    } while (wait(stop));
  }

  // False when it is time to end.
  bool wait(const std::stop_token& stop) {
    std::unique_lock lock(mutex);
    const auto until = std::chrono::steady_clock::now() + interval;
    ended.wait_until(lock, stop, until, [] { return false; });
    return !stop.stop_requested();
  }

  void sample() {
    const std::lock_guard one_at_a_time(reading);  // Or an older reading could come after a newer one.
    Sample sample{monotonic_ns(), 0, {}};
    const std::vector<AccountBytes> accounts = read_classes();
    const std::optional<std::int64_t> resident = resident_memory();
    if (!resident) return;
    sample.resident = *resident;
    const std::lock_guard lock(mutex);
    for (const AccountBytes& account : accounts) {
      const std::size_t index = class_index(account.name);
      if (index < kClassesMax) sample.bytes[index] = account.bytes;
    }
    add(sample);
  }

  // The caller holds the lock.
  std::size_t class_index(const std::string& name) {
    const auto known = std::find(classes.begin(), classes.end(), name);
    if (known == classes.end() && classes.size() < kClassesMax) {
      classes.push_back(name);
      return classes.size() - 1;
    }
    return static_cast<std::size_t>(known - classes.begin());
  }

  // The caller holds the lock.
  void add(const Sample& sample) {
    if (merged == stride) {
      if (count == kSamplesMax) halve();
      samples[count++] = sample;
      merged = 1;
      return;
    }
    ++merged;
    samples[count - 1] = larger(samples[count - 1], sample);
  }

  // The caller holds the lock.
  void halve() {
    for (std::size_t i = 0; i < kSamplesMax / 2; ++i) samples[i] = larger(samples[2 * i], samples[2 * i + 1]);
    count = kSamplesMax / 2;
    stride *= 2;
  }

  MemoryTimeline timeline() {
    sample();
    MemoryTimeline timeline;
    const std::lock_guard lock(mutex);
    for (const std::string& name : classes) timeline.classes.push_back({name, {}});
    for (std::size_t i = 0; i < count; ++i) {
      timeline.at_ns.push_back(samples[i].at_ns);
      timeline.resident.push_back(samples[i].resident);
      for (std::size_t k = 0; k < classes.size(); ++k) timeline.classes[k].bytes.push_back(samples[i].bytes[k]);
    }
    return timeline;
  }

  const std::chrono::nanoseconds interval;
  const std::function<std::vector<AccountBytes>()> read_classes;
  std::mutex reading;                // From the time of a reading to its place in `samples`.
  std::mutex mutex;                  // Guards everything down to `samples`.
  std::vector<std::string> classes;  // In the order of first sight.
  std::int64_t stride = 1;           // Readings that a sample stands for.
  std::int64_t merged = 1;           // Of them, those that the last sample has seen.
  std::size_t count = 0;
  std::vector<Sample> samples;  // Of which `count` are taken.
  std::condition_variable_any ended;
  std::jthread thread;
};

MemorySampler::MemorySampler(std::chrono::nanoseconds interval, std::function<std::vector<AccountBytes>()> classes)
    : impl_(std::make_unique<Impl>(interval, std::move(classes))) {}

MemorySampler::~MemorySampler() = default;  // ~jthread asks the thread to stop and waits for it.

void MemorySampler::sample() {
  impl_->sample();
}

MemoryTimeline MemorySampler::timeline() {
  return impl_->timeline();
}

}  // namespace headrace
