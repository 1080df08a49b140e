#include "python/core/loop_memory.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "core/base/clock.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

constexpr std::int64_t kCountEvery_ns = 200'000'000;
constexpr std::int64_t kPauseFactor = 200;  // Times what a count took.
constexpr std::array<const char*, 4> kNames{"parameters", "gradients", "optimizer", "batches"};

void add_new(nb::list& known, const nb::object& object) {
  for (const nb::handle one : known) {
    if (one.is(object)) return;
  }
  known.append(object);
}

// Runs `count` where it is due, which the first time it always is, and puts off the next one.
template <class Count>
void count_when_due(std::int64_t& due_ns, Count&& count) {
  const std::int64_t begin_ns = monotonic_ns();
  if (begin_ns < due_ns) return;
  count();
  const std::int64_t end_ns = monotonic_ns();
  due_ns = std::max(begin_ns + kCountEvery_ns, end_ns + kPauseFactor * (end_ns - begin_ns));
}

}  // namespace

LoopMemory::LoopMemory()
    : batch_bytes_(imported("headrace._loop_memory", "batch_bytes")),
      object_bytes_(imported("headrace._loop_memory", "object_bytes")) {}

LoopMemory::~LoopMemory() {
  const nb::gil_scoped_acquire held;
  models_.reset();
  optimizers_.reset();
  batch_bytes_.reset();
  object_bytes_.reset();
}

void LoopMemory::add_model(const nb::object& object) {
  add_new(models_, object);
}

void LoopMemory::add_optimizer(const nb::object& object) {
  add_new(optimizers_, object);
}

void LoopMemory::note_batch(nb::handle batch) {
  count_when_due(batch_due_ns_, [&] { bytes_[batches] = integer_of(batch_bytes_(batch)); });
}

void LoopMemory::note_objects() {
  if (models_.empty() && optimizers_.empty()) return;
  count_when_due(objects_due_ns_, [this] {
    using Counted = std::tuple<std::int64_t, std::int64_t, std::optional<std::int64_t>>;
    const auto [held, of_gradients, of_state] = nb::cast<Counted>(object_bytes_(models_, optimizers_));
    bytes_[parameters] = held;
    bytes_[gradients] = of_gradients;
    if (of_state) bytes_[optimizer] = *of_state;
  });
}

std::vector<AccountBytes> LoopMemory::counted() const {
  std::vector<AccountBytes> classes = account_bytes();
  for (std::size_t i = 0; i < kClasses; ++i) {
    const std::int64_t bytes = bytes_[i];
    if (bytes == kNobody) continue;
    const auto known =
        std::find_if(classes.begin(), classes.end(), [&](const AccountBytes& one) { return one.name == kNames[i]; });
    if (known == classes.end()) {
      classes.push_back({kNames[i], bytes});
    } else {  // A Loader's batches are its own; its Trainers have the objects that are known here.
      known->bytes = i == batches ? known->bytes + bytes : bytes;
    }
  }
  return classes;
}

}  // namespace headrace::python
