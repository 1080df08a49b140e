// What AUTOTUNE reaches of the best fixed setting, and how soon it answers to a change. Stages and consumers wait
// instead of working, so that the machine adds little noise. Arms of one scenario run in turn.
//
//   autotune_bench [ROUNDS]
#include <headrace/error.h>
#include <headrace/loader.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/middle.h"
#include "base/run_program.h"
#include "data/detail/waiting_source.h"

namespace headrace {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr std::int64_t kWarmupBatches = 400, kMeasuredBatches = 250;

struct Scenario {
  std::string name;
  std::int64_t batch_size;
  microseconds own;  // Of the consumer, a batch.
  WaitingSource::Cost cost;
  std::vector<std::int64_t> threads;   // Of the fixed rivals,
  std::vector<std::int64_t> prefetch;  // with each of these depths.
};

// Takes batches and waits on each, as training would work on it.
class Consumer {
 public:
  Consumer(const std::shared_ptr<const Source>& source, const DataOptions& options, microseconds own)
      : loader_(std::make_unique<Loader>(source, options, 1, true)), own_(own), epoch_(loader_->next_epoch()) {}

  // Samples a second over so many batches.
  double take(std::int64_t batches) {
    const std::int64_t begin_ns = monotonic_ns();
    std::int64_t samples = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      const auto batch = epoch_.next();
      if (!batch) fail(ErrorCode::internal, "autotune_bench: the epoch has ended");
      samples += batch->size();
      std::this_thread::sleep_for(own_);
    }
    return static_cast<double>(samples) / seconds_since(begin_ns);
  }
  const Loader& loader() const { return *loader_; }

 private:
  std::unique_ptr<Loader> loader_;
  microseconds own_;
  Epoch epoch_;
};

struct Arm {
  std::string name;
  Consumer consumer;
  std::vector<double> rates;  // Samples a second.
};

Arm arm_of(const Scenario& scenario, const std::shared_ptr<const Source>& source, std::int64_t threads,
           std::int64_t prefetch) {
  DataOptions options;
  options.batch_size = scenario.batch_size;
  options.threads = threads;
  options.prefetch_batches = prefetch;
  const bool is_auto = threads == AUTOTUNE;
  return {is_auto ? "AUTOTUNE" : fmt::format("threads {}, prefetch {}", threads, prefetch),
          Consumer{source, options, scenario.own},
          {}};
}

void show_decisions(const Loader& loader) {
  for (const LoaderDecision& made : loader.decisions()) {
    fmt::print("    batch {:>5}: {} {} -> {}{}: {}\n", made.batch, made.what, made.from, made.to,
               made.rolled_back ? " (rolled back)" : "", made.why);
  }
}

// The share of the best fixed setting that AUTOTUNE gets.
double compare(const Scenario& scenario, std::int64_t rounds) {
  const auto source = std::make_shared<WaitingSource>(scenario.batch_size * 1'000'000, scenario.cost);
  std::vector<Arm> arms;
  arms.push_back(arm_of(scenario, source, AUTOTUNE, AUTOTUNE));
  for (const std::int64_t threads : scenario.threads) {
    for (const std::int64_t prefetch : scenario.prefetch) {
      arms.push_back(arm_of(scenario, source, threads, prefetch));
    }
  }
  arms[0].consumer.take(kWarmupBatches);
  for (std::int64_t round = 0; round < rounds; ++round) {
    for (Arm& arm : arms) arm.rates.push_back(arm.consumer.take(kMeasuredBatches));
  }
  fmt::print("{}\n", scenario.name);
  double best = 0;
  for (Arm& arm : arms) {
    const auto [low, high] = std::minmax_element(arm.rates.begin(), arm.rates.end());
    fmt::print("  {:<24} {:>9.1f} [{:.1f}, {:.1f}] samples/s\n", arm.name, middle_of(arm.rates), *low, *high);
    if (&arm != &arms[0]) best = std::max(best, middle_of(arm.rates));
  }
  const double share = middle_of(arms[0].rates) / best;
  fmt::print("  AUTOTUNE, threads {}, prefetch {}: {:.3f} of the best fixed setting\n",
             arms[0].consumer.loader().statistics().threads, arms[0].consumer.loader().statistics().prefetch_batches,
             share);
  show_decisions(arms[0].consumer.loader());
  return share;
}

// The stage's cost changes at batch 200: how many batches later a decision comes, and what the running loader gets
// afterwards of what one gets that began with that cost.
void change_cost(microseconds before, microseconds after) {
  constexpr microseconds kOwn{1000};
  constexpr std::int64_t kChange = 200;
  std::atomic<std::int64_t> wait_us{before.count()};
  const auto source = std::make_shared<WaitingSource>(
      1'000'000, [&](std::int64_t, std::int64_t) { return nanoseconds(microseconds(wait_us.load())); });
  DataOptions options;
  options.batch_size = 1;
  options.threads = options.prefetch_batches = AUTOTUNE;
  Consumer running{source, options, kOwn};
  running.take(kChange);
  wait_us = after.count();
  const Loader& loader = running.loader();
  const std::size_t known = loader.decisions().size();
  std::int64_t waited = 0;
  for (; waited < 400 && loader.decisions().size() == known; ++waited) running.take(1);
  Consumer fresh{source, options, kOwn};
  running.take(kWarmupBatches);
  fresh.take(kWarmupBatches);
  std::vector<double> ours, theirs;
  for (int round = 0; round < 5; ++round) {
    ours.push_back(running.take(kMeasuredBatches));
    theirs.push_back(fresh.take(kMeasuredBatches));
  }
  fmt::print(
      "a stage of {} us takes {} us from batch {} on: decision {} batches later; then {:.3f} of a fresh run; "
      "threads {}\n",
      before.count(), after.count(), kChange, waited, middle_of(ours) / middle_of(theirs), loader.statistics().threads);
  show_decisions(loader);
}

WaitingSource::Cost always(microseconds wait) {
  return [wait](std::int64_t, std::int64_t) { return nanoseconds(wait); };
}

void run(std::int64_t rounds) {
  const std::vector<std::int64_t> threads{1, 2, 4, 8, 16};
  const std::vector<Scenario> scenarios{
      {"stage 5 ms, consumer 1 ms, batches of 1", 1, microseconds(1000), always(microseconds(5000)), threads, {2, 32}},
      {"stage 2 ms a sample, consumer 10 ms, batches of 16",
       16,
       microseconds(10'000),
       always(microseconds(2000)),
       threads,
       {2, 8}},
      {"stage 0.1 ms, every 20th sample 50 ms, consumer 4 ms, batches of 1",
       1,
       microseconds(4000),
       [](std::int64_t index, std::int64_t) { return nanoseconds(microseconds(index % 20 == 0 ? 50'000 : 100)); },
       {1, 4},
       {2, 8, 32}}};
  double worst = 1;
  for (const Scenario& scenario : scenarios) worst = std::min(worst, compare(scenario, rounds));
  change_cost(microseconds(500), microseconds(5000));
  change_cost(microseconds(5000), microseconds(100));
  fmt::print("the least of the best fixed setting: {:.3f}\n", worst);
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 3;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: autotune_bench [ROUNDS, at least 1]\n");
    return 2;
  }
  return headrace::run_program(argc, argv, [rounds](const auto&) { headrace::run(rounds); });
}
