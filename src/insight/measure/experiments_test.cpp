#include "insight/measure/experiments.h"

#include <gtest/gtest.h>
#include <headrace/trace.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace headrace {
namespace {

constexpr double kForEver = std::numeric_limits<double>::infinity();

// Tells planted times. Its steps under a trace are as short as this machine makes them.
class FakeJob final : public MeasurableJob {
 public:
  void snapshot() override {}
  void restore() override {}
  void configure(const Settings&) override {}
  std::vector<double> run(std::int64_t steps) override {
    steps_ += steps;
    for (std::int64_t i = 0; i < steps; ++i) {
      const Span step{step::kStep};
      const Span wait{step::kDataWait};
    }
    double seconds = free_ ? free_s : whole_s;
    if (free_ && scatter > 0) seconds *= ++blocks_ % 4 < 2 ? 1 + scatter : 1 - scatter;
    return std::vector<double>(static_cast<std::size_t>(steps), seconds);
  }
  Fingerprint fingerprint(std::int64_t) override { return {}; }
  std::uint64_t state_hash() override { return 0; }
  double update_difference(const Settings&, const Settings&) override { return 0; }
  std::int64_t samples_per_step() const override { return 1; }

  void set_free_data(bool free_data) override { free_ = free_data; }
  std::optional<LoaderWork> loader_work() const override { return work; }
  void set_loads_aside(bool loads_aside) override {
    loads_aside_ = loads_aside;
    ++switched;
  }
  bool set_idle_compute(double seconds) override {
    if (!can_idle) return false;
    idle_s = seconds;
    ++idled;
    return true;
  }

  bool is_as_it_was() const { return !free_ && loads_aside_ && idle_s == 0; }
  std::int64_t steps() const { return steps_; }

  double whole_s = 0.1, free_s = 0.06, scatter = 0;
  std::optional<LoaderWork> work;
  bool can_idle = true;
  double idle_s = 0;
  int switched = 0, idled = 0;

 private:
  bool free_ = false, loads_aside_ = true;
  int blocks_ = 0;
  std::int64_t steps_ = 0;
};

TimeSplit split_of(double wait_s) {
  return sum_steps(std::vector<double>(40, 0.1), std::vector<TimeSplit::Parts>(40, {.data_wait_s = wait_s}));
}

TEST(Experiments, OneCachedBatchIsComparedWithTheJobAsItIs) {
  FakeJob job;
  const StepExperiments found = run_experiments(job, split_of(0), kForEver);
  ASSERT_TRUE(found.free_data);
  EXPECT_NEAR(found.free_data->middle, 0.06, 1e-12);
  EXPECT_LE(found.free_data->low, found.free_data->middle);
  EXPECT_GE(found.free_data->high, found.free_data->middle);
  EXPECT_FALSE(found.undisturbed_compute);  // Nobody loads beside it,
  EXPECT_FALSE(found.idle_compute_wait);    // and nothing is waited for.
  EXPECT_TRUE(job.is_as_it_was());
}

TEST(Experiments, ComputeSleepsWhereDataIsWaitedForAndLoadersStopWhereThereAreSome) {
  FakeJob job;
  job.work = LoaderWork{.busy_s = 1, .num_workers = 2};
  const StepExperiments found = run_experiments(job, split_of(0.03), kForEver);
  EXPECT_TRUE(found.idle_compute_wait);
  EXPECT_EQ(job.idled, 14);     // On and off in each of seven pairs,
  EXPECT_EQ(job.switched, 14);  // and so the loader.
  EXPECT_TRUE(job.is_as_it_was());
}

TEST(Experiments, AJobThatCannotSleepHasNoFigureOfIt) {
  FakeJob job;
  job.can_idle = false;
  EXPECT_FALSE(run_experiments(job, split_of(0.03), kForEver).idle_compute_wait);
  EXPECT_TRUE(job.is_as_it_was());
}

TEST(Experiments, PairsThatDifferTooMuchTellNothing) {
  FakeJob job;
  job.scatter = 0.4;
  EXPECT_FALSE(run_experiments(job, split_of(0), kForEver).free_data);
}

TEST(Experiments, WithoutTimeNoneAreMadeAndWithLittleTheyAreShort) {
  FakeJob none;
  EXPECT_FALSE(run_experiments(none, split_of(0), 0).free_data);
  EXPECT_EQ(none.steps(), 0);
  FakeJob all, some;
  run_experiments(all, split_of(0), kForEver);
  run_experiments(some, split_of(0), 14 * 0.1 * 4.5);  // 3.5 steps of each of 14 blocks, and one unmeasured.
  EXPECT_EQ(some.steps(), 14 * (3 + 1));
  EXPECT_EQ(all.steps(), 14 * (5 + 1));
}

}  // namespace
}  // namespace headrace
