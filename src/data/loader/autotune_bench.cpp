// What AUTOTUNE reaches of the best fixed setting, and how soon it answers to a change. Stages and consumers wait
// instead of working, so that the machine adds little noise. Arms of one scenario run in turn. Exit status 1: a bar is
// missed (DATA-03, DATA-04 and DATA-11 of docs/requirements.md).
//
//   autotune_bench [ROUNDS]
#include <headrace/loader.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/base/middle.h"
#include "core/base/run_program.h"
#include "data/source/waiting_source.h"

namespace headrace {
namespace {

using std::chrono::microseconds;
using std::chrono::nanoseconds;

constexpr std::int64_t kWarmupBatches = 400, kMeasuredBatches = 250;
constexpr double kShareWanted = 0.8;         // Of the best fixed setting, and of a fresh run.
constexpr std::int64_t kAnswerWanted = 100;  // Batches after a change of cost.
constexpr std::int64_t kMb = 1'000'000;

// Prints the line's end; counts what is missed.
class Bars {
 public:
  void judge(bool is_met, const std::string& wanted) {
    fmt::print("; wanted {}: {}\n", wanted, is_met ? "met" : "MISSED");
    if (!is_met) ++missed_;
  }
  int missed() const { return missed_; }

 private:
  int missed_ = 0;
};

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
  options.num_workers = threads;
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

void compare(const Scenario& scenario, std::int64_t rounds, Bars& bars) {
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
  fmt::print("  AUTOTUNE, threads {}, prefetch {}: {:.3f} of the best fixed setting",
             arms[0].consumer.loader().statistics().num_workers,
             arms[0].consumer.loader().statistics().prefetch_batches, share);
  bars.judge(share >= kShareWanted, fmt::format("at least {}", kShareWanted));
  show_decisions(arms[0].consumer.loader());
}

// The stage's cost changes at batch 200: how many batches later a decision comes, and what the running loader gets
// afterwards of what one gets that began with that cost.
void change_cost(microseconds before, microseconds after, Bars& bars) {
  constexpr microseconds kOwn{1000};
  constexpr std::int64_t kChange = 200;
  std::atomic<std::int64_t> wait_us{before.count()};
  const auto source = std::make_shared<WaitingSource>(
      1'000'000, [&](std::int64_t, std::int64_t) { return nanoseconds(microseconds(wait_us.load())); });
  DataOptions options;
  options.batch_size = 1;
  options.num_workers = options.prefetch_batches = AUTOTUNE;
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
  const double share = middle_of(ours) / middle_of(theirs);
  fmt::print(
      "a stage of {} us takes {} us from batch {} on: decision {} batches later; then {:.3f} of a fresh run; threads "
      "{}",
      before.count(), after.count(), kChange, waited, share, loader.statistics().num_workers);
  bars.judge(waited <= kAnswerWanted && share >= kShareWanted && share <= 2 - kShareWanted,
             fmt::format("at most {} batches, within 20 %", kAnswerWanted));
  show_decisions(loader);
}

WaitingSource::Cost always(microseconds wait) {
  return [wait](std::int64_t, std::int64_t) { return nanoseconds(wait); };
}

// Peak resident memory of this process since the last call with true, in bytes (proc(5), clear_refs and VmHWM).
std::int64_t peak_memory(bool restart) {
  if (restart) std::ofstream("/proc/self/clear_refs") << 5;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kib = 0;
    if (word == "VmHWM:" && status >> kib) return kib * 1024;
  }
  fail(ErrorCode::io, "autotune_bench: /proc/self/status tells no peak of memory");
}

// Batches of 1 MB, every 20th of which takes 50 ms: how deep 10 MiB let the window grow, and what that takes.
void bound_bytes(Bars& bars) {
  const auto source = std::make_shared<WaitingSource>(
      1'000'000,
      [](std::int64_t index, std::int64_t) { return nanoseconds(microseconds(index % 20 == 0 ? 50'000 : 100)); }, 500);
  DataOptions options;
  options.batch_size = options.num_workers = 1;
  options.shuffle = false;
  options.prefetch_batches = AUTOTUNE;
  options.prefetch_mib = 10;
  const std::int64_t before = peak_memory(/*restart=*/true);
  Consumer consumer{source, options, microseconds(4000)};
  consumer.take(2 * kWarmupBatches);
  const LoaderStatistics found = consumer.loader().statistics();
  const std::int64_t growth = peak_memory(/*restart=*/false) - before;
  fmt::print(
      "batches of {:.3f} MB within data.prefetch_mib = 10: {} ahead, {:.1f} MB of batches, peak memory {:.1f} MB more",
      static_cast<double>(found.batch_bytes) / kMb, found.prefetch_batches, static_cast<double>(found.pool_bytes) / kMb,
      static_cast<double>(growth) / kMb);
  bars.judge(found.prefetch_batches <= 10 && growth < 12 * found.batch_bytes + 2 * kMb,
             "at most 10 ahead, and in memory those and the consumer's two");
  show_decisions(consumer.loader());
}

int run(std::int64_t rounds) {
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
  Bars bars;
  bound_bytes(bars);
  for (const Scenario& scenario : scenarios) compare(scenario, rounds, bars);
  change_cost(microseconds(500), microseconds(5000), bars);
  change_cost(microseconds(5000), microseconds(100), bars);
  fmt::print("{} missed; {} rounds\n", bars.missed(), rounds);
  return bars.missed();
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  const long rounds = argc > 1 ? std::atol(argv[1]) : 3;
  if (rounds < 1) {
    std::fprintf(stderr, "usage: autotune_bench [ROUNDS, at least 1]\n");
    return 2;
  }
  int missed = 0;
  const int status = headrace::run_program(argc, argv, [&](const auto&) { missed = headrace::run(rounds); });
  return status == 0 && missed > 0 ? 1 : status;
}
