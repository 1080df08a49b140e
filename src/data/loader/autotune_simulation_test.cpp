// The loader's tuning in virtual time: workers, a bounded window and a consumer are simulated to the nanosecond, so
// that rates can be compared whatever the machine does meanwhile. autotune_bench does the same with threads and a
// clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "data/loader/detail/autotune.h"
#include "data/loader/detail/rate_meter.h"

namespace headrace::detail {
namespace {

constexpr std::int64_t kUs = 1'000, kMs = 1'000'000;

using Cost = std::function<std::int64_t(std::int64_t batch)>;  // Nanoseconds that a worker takes for it; all waiting.

// Batches of one sample. As in the Loader, a worker begins the next one while fewer than `prefetch` are begun and not
// delivered, and batches are delivered in order.
class SimulatedLoader {
 public:
  SimulatedLoader(Cost cost, std::int64_t consumer_busy_ns, const LoaderSetting& setting)
      : cost_(std::move(cost)),
        own_ns_(consumer_busy_ns),
        setting_(setting),
        workers_(as_size(setting.num_workers), 0) {
    fill_window();
  }
  // What AUTOTUNE begins with.
  SimulatedLoader(Cost cost, std::int64_t consumer_busy_ns, std::int64_t prefetch_max)
      : SimulatedLoader(std::move(cost), consumer_busy_ns, LoaderSetting{1, 2}) {
    is_automatic_ = true;
    tuner_.reset({.low = {1, 1}, .high = {16, prefetch_max}, .cores = 2}, setting_);
    meter_.restart(setting_.prefetch + kConsumerBatches);
  }

  // Delivers so many batches; the consumer works on each. Returns batches a second.
  double take(std::int64_t batches) {
    const std::int64_t begin_ns = now_ns_;
    waited_ns_ = 0;
    for (std::int64_t i = 0; i < batches; ++i) deliver();
    return static_cast<double>(batches) / (static_cast<double>(now_ns_ - begin_ns) * 1e-9);
  }
  std::int64_t waited_ns() const { return waited_ns_; }  // By the consumer in the last take().
  const LoaderSetting& setting() const { return setting_; }
  const std::vector<LoaderDecision>& decisions() const { return tuner_.decisions(); }

 private:
  static constexpr std::int64_t kConsumerBatches = 2;

  struct Work {
    std::int64_t begin_ns, end_ns, idle_ns;  // idle_ns: the worker's wait for room before it.
  };

  static std::size_t as_size(std::int64_t number) { return static_cast<std::size_t>(number); }

  void fill_window() {
    while (std::ssize(window_) < setting_.prefetch) {
      const auto worker = std::min_element(workers_.begin(), workers_.end());
      const std::int64_t begin_ns = std::max(*worker, now_ns_);
      const Work work{begin_ns, begin_ns + cost_(begun_++), begin_ns - *worker};
      *worker = work.end_ns;
      window_.push_back(work.end_ns);
      unreported_.push_back(work);
    }
  }

  void deliver() {
    const std::int64_t asked_ns = now_ns_;
    now_ns_ = std::max(now_ns_, window_.front());
    waited_ns_ += now_ns_ - asked_ns;
    window_.pop_front();
    ++delivered_;
    fill_window();
    if (is_automatic_) {
      report_until_now();
      meter_.add(asked_ns, now_ns_, totals_);
      if (const auto rates = meter_.rates(1)) retune(*rates);
    }
    now_ns_ += own_ns_;
  }

  void report_until_now() {
    std::erase_if(unreported_, [this](const Work& work) {
      if (work.end_ns > now_ns_) return false;
      const std::int64_t busy_ns = work.end_ns - work.begin_ns;
      ++totals_.samples;
      ++totals_.read;
      totals_.busy_ns += busy_ns;
      totals_.cpu_busy_ns += busy_ns;
      totals_.read_ns += busy_ns;
      totals_.room_ns += work.idle_ns;
      return true;
    });
  }

  void retune(const LoaderRates& rates) {
    const LoaderSetting before = setting_;
    setting_ = tuner_.step(rates, delivered_, static_cast<double>(now_ns_) * 1e-9).value_or(before);
    meter_.restart(setting_ == before ? 0 : before.prefetch + kConsumerBatches);
    workers_.resize(as_size(setting_.num_workers), now_ns_);
    fill_window();
  }

  Cost cost_;
  std::int64_t own_ns_;
  LoaderSetting setting_;
  bool is_automatic_ = false;
  Autotuner tuner_{{}, {}};
  RateMeter meter_;
  WorkerTotals totals_;
  std::int64_t now_ns_ = 0, waited_ns_ = 0, begun_ = 0, delivered_ = 0;
  std::vector<std::int64_t> workers_;  // When each has done what it has taken on.
  std::deque<std::int64_t> window_;    // Of the batches begun and not delivered: when they are whole.
  std::vector<Work> unreported_;
};

Cost always(std::int64_t cost_ns) {
  return [cost_ns](std::int64_t) { return cost_ns; };
}

double best_fixed_rate(const Cost& cost, std::int64_t consumer_busy_ns) {
  double best = 0;
  for (const std::int64_t threads : {1, 2, 4, 8, 16}) {
    for (const std::int64_t prefetch : {2, 8, 32}) {
      SimulatedLoader fixed{cost, consumer_busy_ns, LoaderSetting{threads, prefetch}};
      fixed.take(100);
      best = std::max(best, fixed.take(400));
    }
  }
  return best;
}

TEST(AutotuneSimulation, FixedSettingsHaveTheRatesThatArithmeticGives) {
  EXPECT_NEAR((SimulatedLoader{always(5 * kMs), 1 * kMs, LoaderSetting{1, 2}}.take(1000)), 200, 1);
  EXPECT_NEAR((SimulatedLoader{always(5 * kMs), 1 * kMs, LoaderSetting{4, 8}}.take(1000)), 800, 5);
  EXPECT_NEAR((SimulatedLoader{always(5 * kMs), 1 * kMs, LoaderSetting{4, 2}}.take(1000)), 400, 5);
  EXPECT_NEAR((SimulatedLoader{always(5 * kMs), 1 * kMs, LoaderSetting{16, 32}}.take(1000)), 1000, 10);
}

TEST(AutotuneSimulation, ThreadsRiseToFourFifthsOfTheBestFixedRateAtLeastAndComeDownWithTheCost) {
  std::int64_t cost_ns = 5 * kMs;
  const Cost cost = [&](std::int64_t) { return cost_ns; };
  SimulatedLoader tuned{cost, 1 * kMs, 64};
  tuned.take(400);
  ASSERT_FALSE(tuned.decisions().empty());
  EXPECT_EQ(tuned.decisions().front().what, "data.num_workers");
  EXPECT_EQ(tuned.decisions().front().from, 1);
  EXPECT_GT(tuned.decisions().front().to, 1);
  EXPECT_GE(tuned.take(400), 0.8 * best_fixed_rate(always(cost_ns), 1 * kMs));
  cost_ns = 100 * kUs;
  tuned.take(400);
  EXPECT_EQ(tuned.setting().num_workers, 1);
  EXPECT_GE(tuned.take(400), 0.8 * best_fixed_rate(always(cost_ns), 1 * kMs));
}

TEST(AutotuneSimulation, DepthGrowsUntilABurstStarvesNobody) {
  const Cost bursty = [](std::int64_t batch) { return batch % 20 == 0 ? 50 * kMs : 100 * kUs; };
  SimulatedLoader shallow{bursty, 4 * kMs, LoaderSetting{1, 2}};
  shallow.take(400);
  EXPECT_GT(shallow.waited_ns(), 400 / 20 * 40 * kMs);
  SimulatedLoader tuned{bursty, 4 * kMs, 64};
  tuned.take(2000);
  tuned.take(400);
  EXPECT_EQ(tuned.waited_ns(), 0);
  SimulatedLoader bounded{bursty, 4 * kMs, 10};
  bounded.take(2000);
  EXPECT_EQ(bounded.setting().prefetch, 10);
  for (const LoaderDecision& made : bounded.decisions()) {
    EXPECT_TRUE(made.what != "data.prefetch_batches" || made.to <= 10) << made.to;
  }
}

TEST(AutotuneSimulation, AChangeOfCostIsAnsweredWithinAHundredBatchesAndThenAsGoodAsAFreshRun) {
  for (const auto& [before_ns, after_ns] : {std::pair{500 * kUs, 5 * kMs}, std::pair{5 * kMs, 100 * kUs}}) {
    std::int64_t cost_ns = before_ns;
    const Cost cost = [&](std::int64_t) { return cost_ns; };
    SimulatedLoader running{cost, 1 * kMs, 64};
    running.take(200);
    const std::size_t known = running.decisions().size();
    cost_ns = after_ns;
    running.take(100);
    ASSERT_GT(running.decisions().size(), known) << before_ns;
    const LoaderDecision& answer = running.decisions()[known];
    EXPECT_EQ(answer.what, "data.num_workers");
    EXPECT_EQ(answer.to > answer.from, after_ns > before_ns);
    EXPECT_GT(answer.before, 0);
    SimulatedLoader fresh{always(after_ns), 1 * kMs, 64};
    running.take(400);
    fresh.take(600);
    EXPECT_NEAR(running.take(400) / fresh.take(400), 1, 0.2) << before_ns;
    EXPECT_TRUE(running.decisions()[known].after.has_value());
  }
}

}  // namespace
}  // namespace headrace::detail
