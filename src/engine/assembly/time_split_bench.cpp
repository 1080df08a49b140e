// 5 ms planted in one part of every step: how much of it the time split finds in that part. One line a part: the median
// over steps without and with the plant, the difference, and how far it is from 5 ms.
#include <fmt/format.h>
#include <headrace/time_split.h>
#include <headrace/trace.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/middle.h"
#include "engine/assembly/tiny_dataset.h"
#include "engine/assembly/training.h"
#include "torch/train/loop.h"

namespace headrace {
namespace {

constexpr double kPlantedMs = 5;
constexpr std::int64_t kSteps = 101;

void spend() {
  const std::int64_t end_ns = monotonic_ns() + static_cast<std::int64_t>(kPlantedMs * 1e6);
  while (monotonic_ns() < end_ns) {
  }
}

enum class Place { nowhere, data_wait, transfer, forward, backward, optimizer, other };

TimeSplit split_with(Training& training, Place place) {
  Trainer& trainer = training.trainer();
  const auto in_part = [place](StepPart part) {
    return (place == Place::transfer && part == StepPart::transfer) ||
           (place == Place::forward && part == StepPart::forward) ||
           (place == Place::backward && part == StepPart::backward) ||
           (place == Place::optimizer && part == StepPart::optimizer);
  };
  trainer.on_part = [&](StepPart part) {
    if (in_part(part)) spend();
  };
  Epoch epoch = training.loader().epoch(0);
  const std::optional<Batch> batch = epoch.next();
  const BatchStream stream{[&] {
                             if (place == Place::data_wait) spend();
                             return batch;
                           },
                           kSteps + 1};
  Trace trace;
  run_steps(trainer, stream, kSteps, [&](const StepDone&) {
    if (place == Place::other) spend();
  });
  return split_time(trace.stop());
}

double median_ms(const TimeSplit& split, Place place) {
  std::vector<double> values;
  for (std::size_t i = 0; i < split.parts.size(); ++i) {
    const TimeSplit::Parts& p = split.parts[i];
    const double parts = p.data_wait_s + p.transfer_s + p.forward_s + p.backward_s + p.optimizer_s;
    const double found[] = {
        0, p.data_wait_s, p.transfer_s, p.forward_s, p.backward_s, p.optimizer_s, split.step_s[i] - parts};
    values.push_back(found[static_cast<int>(place)] * 1e3);
  }
  return middle_of(std::move(values));
}

}  // namespace
}  // namespace headrace

int main() {
  using namespace headrace;
  const TinyDataset data{400};
  Training training{data.recipe(), detect_machine()};
  const TimeSplit plain = split_with(training, Place::nowhere);
  fmt::print("median of {} steps, ms: part, without, with {} ms planted, found, off by\n", kSteps, kPlantedMs);
  const std::pair<const char*, Place> parts[] = {{"data_wait", Place::data_wait}, {"transfer", Place::transfer},
                                                 {"forward", Place::forward},     {"backward", Place::backward},
                                                 {"optimizer", Place::optimizer}, {"other", Place::other}};
  for (const auto& [name, place] : parts) {
    const double without = median_ms(plain, place), with = median_ms(split_with(training, place), place);
    fmt::print("{:<10} {:7.3f} {:7.3f} {:7.3f} {:+6.2f} %\n", name, without, with, with - without,
               ((with - without) / kPlantedMs - 1) * 100);
  }
}
