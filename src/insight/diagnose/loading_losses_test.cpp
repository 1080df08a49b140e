#include <gtest/gtest.h>
#include <headrace/resource_verdict.h>

#include <vector>

namespace headrace {
namespace {

TEST(SimulatedWait, IsTheRateOfTheWorkersWhereThatIsBelowTheConsumers) {
  const std::vector<double> batches(200, 0.3);
  EXPECT_NEAR(simulated_wait(batches, 2, 4, 0.1), 0.05, 0.005);  // 0.15 s a batch.
  EXPECT_NEAR(simulated_wait(batches, 2, 4, 0.2), 0, 1e-9);
  EXPECT_NEAR(simulated_wait(batches, 1, 2, 0.1), 0.2, 0.005);
  EXPECT_EQ(simulated_wait({}, 2, 4, 0.1), 0);
}

TEST(SimulatedWait, OneSlowWorkerIsWaitedForInTurn) {
  std::vector<double> uneven;
  for (int i = 0; i < 200; ++i) uneven.push_back(i % 2 == 0 ? 0.5 : 0.1);
  EXPECT_NEAR(simulated_wait(uneven, 2, 4, 0.2), 0.05, 0.01);  // Two batches in 0.5 s, of which 0.4 s are computed.
  EXPECT_NEAR(simulated_wait(std::vector<double>(200, 0.3), 2, 4, 0.2), 0, 1e-9);
}

}  // namespace
}  // namespace headrace
