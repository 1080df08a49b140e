// What it costs to observe operators: nanoseconds an operator beyond the same loop unobserved, on loops of small ones.
// An observer that does nothing is what LibTorch takes for any: beside it are OperatorSpans and LibTorch's own
// profiler, whose start and end are not counted. In turn, one thread, medians with their quartiles; no bar.
//   operator_spans_bench [rounds]
#include <ATen/core/Tensor.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sum.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <headrace/operator_category.h>
#include <headrace/trace.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/base/clock.h"
#include "quantile.h"
#include "torch/tensor/compute.h"
#include "torch/train/operator_spans.h"

namespace {

using namespace headrace;
namespace profiler = torch::autograd::profiler;

constexpr std::int64_t kOperatorsPerBlock = 20'000;

struct Loop {
  std::string name;
  std::function<void()> once;
  std::int64_t operators = 0;  // That `once` calls, nested ones too.
};

std::int64_t operators_of(const std::function<void()>& once) {
  Trace trace;
  {
    const OperatorSpans spans;
    once();
  }
  const TraceRecord record = trace.stop();
  return std::count_if(record.events.begin(), record.events.end(), [&](const TraceEvent& event) {
    return std::string_view(record.names[event.name].category) == operators::kCategory;
  });
}

std::vector<Loop> loops() {
  const at::Tensor sum = at::ones({8}), one = at::ones({8});
  const at::Tensor image = at::ones({4, 8}), weight = at::ones({8, 8}), bias = at::ones({8});
  const at::Tensor trained = at::ones({8, 8}).requires_grad_();
  std::vector<Loop> made{
      {"add_, nothing within it", [=] { sum.add_(one); }},
      {"linear, with what it calls", [=] { at::linear(image, weight, bias); }},
      {"linear, sigmoid, sum and their backward",
       [=] { at::sum(at::sigmoid(at::linear(image, trained, bias))).backward(); }},
  };
  for (Loop& loop : made) {
    loop.once();  // The first backward makes the gradient, later ones add to it.
    loop.operators = operators_of(loop.once);
  }
  return made;
}

// An operator's nanoseconds, with all that runs between two of them.
double block_ns(const Loop& loop) {
  const std::int64_t calls = kOperatorsPerBlock / loop.operators;
  const std::int64_t begin_ns = monotonic_ns();
  for (std::int64_t call = 0; call < calls; ++call) loop.once();
  return static_cast<double>(monotonic_ns() - begin_ns) / static_cast<double>(calls * loop.operators);
}

class IdleObserver {
 public:
  explicit IdleObserver(const std::unordered_set<at::RecordScope>& scopes)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(
                [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; },
                [](const at::RecordFunction&, at::ObserverContext*) {})
                .scopes(scopes))) {}
  ~IdleObserver() { at::removeCallback(handle_); }
  IdleObserver(const IdleObserver&) = delete;
  IdleObserver& operator=(const IdleObserver&) = delete;

 private:
  at::CallbackHandle handle_;
};

double idle_ns(const Loop& loop, const std::unordered_set<at::RecordScope>& scopes) {
  const IdleObserver observer(scopes);
  return block_ns(loop);
}

double traced_ns(const Loop& loop, OperatorSpansOptions options) {
  const Trace trace;
  const OperatorSpans spans(options);
  return block_ns(loop);
}

double profiled_ns(const Loop& loop, bool with_shapes_and_memory) {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO, with_shapes_and_memory,
                                        with_shapes_and_memory);
  profiler::prepareProfiler(config, {profiler::ActivityType::CPU});
  profiler::enableProfiler(config, {profiler::ActivityType::CPU});
  const double ns = block_ns(loop);
  profiler::disableProfiler();
  return ns;
}

struct Arm {
  std::string name;
  std::function<double(const Loop&)> block;
  std::vector<double> ns{};  // An operator, one value a round.
};

constexpr std::size_t kUnobserved = 0, kIdle = 1, kTraced = 4, kProfiled = 8;  // Places in arms().

std::vector<Arm> arms() {
  using enum at::RecordScope;
  return {
      {"unobserved", block_ns},
      {"an observer that does nothing",
       [](const Loop& loop) {
         return idle_ns(loop, {FUNCTION, BACKWARD_FUNCTION, TORCHSCRIPT_FUNCTION, USER_SCOPE});
       }},
      {"the same, of every scope", [](const Loop& loop) { return idle_ns(loop, {}); }},
      {"OperatorSpans, no Trace",
       [](const Loop& loop) {
         const OperatorSpans spans;
         return block_ns(loop);
       }},
      {"OperatorSpans, a Trace", [](const Loop& loop) { return traced_ns(loop, {}); }},
      {"with shapes", [](const Loop& loop) { return traced_ns(loop, {.record_shapes = true}); }},
      {"with memory", [](const Loop& loop) { return traced_ns(loop, {.profile_memory = true}); }},
      {"with both", [](const Loop& loop) { return traced_ns(loop, {.record_shapes = true, .profile_memory = true}); }},
      {"LibTorch's profiler", [](const Loop& loop) { return profiled_ns(loop, false); }},
      {"LibTorch's profiler, with both", [](const Loop& loop) { return profiled_ns(loop, true); }},
  };
}

// A round runs a block of every arm; it begins with another one each time, and every other round goes backwards.
void take_turns(std::vector<Arm>& arms, const Loop& loop, int rounds) {
  for (Arm& arm : arms) arm.block(loop);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < arms.size(); ++i) {
      const std::size_t place = (i + static_cast<std::size_t>(round) / 2) % arms.size();
      Arm& arm = arms[round % 2 == 0 ? place : arms.size() - 1 - place];
      arm.ns.push_back(arm.block(loop));
    }
  }
}

// Round by round.
std::vector<double> added(const std::vector<Arm>& arms, std::size_t place) {
  std::vector<double> found;
  for (std::size_t round = 0; round < arms[place].ns.size(); ++round) {
    found.push_back(arms[place].ns[round] - arms[kUnobserved].ns[round]);
  }
  return found;
}

void show(const std::vector<Arm>& arms, const Loop& loop) {
  fmt::print("\n{}: {} operators a call, {:.0f} ns each unobserved; beyond that\n", loop.name, loop.operators,
             quantile(arms[kUnobserved].ns, 0.5));
  for (std::size_t place = kUnobserved + 1; place < arms.size(); ++place) {
    const std::vector<double> ns = added(arms, place);
    fmt::print("{:<32} {:7.1f} ns   quartiles {:.1f} to {:.1f}\n", arms[place].name, quantile(ns, 0.5),
               quantile(ns, 0.25), quantile(ns, 0.75));
  }
  const double profiled = quantile(added(arms, kProfiled), 0.5);
  if (profiled <= 0) {
    fmt::print("of LibTorch's profiler: unavailable: it added nothing that could be measured\n");
    return;
  }
  fmt::print("of LibTorch's profiler: {:.2f} an observer that does nothing, {:.2f} OperatorSpans in a Trace\n",
             quantile(added(arms, kIdle), 0.5) / profiled, quantile(added(arms, kTraced), 0.5) / profiled);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 41;
  if (rounds < 1) {
    fmt::print(stderr, "operator_spans_bench: wanted at least 1 round, found {}\n", argv[1]);
    return 2;
  }
  apply_compute_threads(1);
  fmt::print("{} rounds of {} operators an arm, 1 thread\n", rounds, kOperatorsPerBlock);
  for (const Loop& loop : loops()) {
    std::vector<Arm> in_turn = arms();
    take_turns(in_turn, loop, rounds);
    show(in_turn, loop);
  }
  return 0;
}
