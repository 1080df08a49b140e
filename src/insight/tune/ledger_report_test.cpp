#include "insight/tune/ledger_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::IsEmpty;

Ledger ledger_of_one_kept() {
  Ledger ledger;
  Trial kept;
  kept.name = "fused optimizer";
  kept.verdict = Verdict::kept;
  kept.pairs = 2;
  kept.gain = Interval{0.2, 0.15, 0.25};
  kept.changes = {{"optimizer.fused", "true"}};
  kept.baseline_s = {0.06, 0.05};
  kept.candidate_s = {0.05, 0.04};
  ledger.trials = {kept};
  ledger.best = kept.changes;
  ledger.speedup = {1.2, 1.15, 1.25};
  ledger.speedup_pairs = 2;
  ledger.baseline_s = {0.06, 0.03};
  ledger.best_s = {0.05, 0.02};
  return ledger;
}

Report report_of(const Ledger& ledger) {
  Report report;
  show_ledger(report, ledger, {}, "the recipe as written");
  return report;
}

TEST(LedgerReport, ShowsWhatEachPairGained) {
  const Report report = report_of(ledger_of_one_kept());
  ASSERT_EQ(report.changes.size(), 1U);
  EXPECT_THAT(report.changes[0].pair_gains, ElementsAre(DoubleNear(0.2, 1e-12), DoubleNear(0.25, 1e-12)));
  EXPECT_THAT(report.speedup_ratios, ElementsAre(DoubleNear(1.2, 1e-12), DoubleNear(1.5, 1e-12)));
}

// Its gain is that of a whole run, of which its pairs know the late part alone.
TEST(LedgerReport, ShowsNoPairsOfAChangeThatPaysLate) {
  Ledger ledger = ledger_of_one_kept();
  ledger.trials[0].late_share = 0.25;
  const Report report = report_of(ledger);
  EXPECT_THAT(report.changes[0].pair_gains, IsEmpty());
  EXPECT_THAT(report.speedup_ratios, IsEmpty());
  EXPECT_EQ(report.late_share, 0.25);
}

TEST(LedgerReport, ShowsNoPairsWhereALedgerHasNotBothBlocksOfEach) {
  Ledger ledger = ledger_of_one_kept();
  ledger.trials[0].candidate_s.pop_back();
  ledger.best_s.clear();
  const Report report = report_of(ledger);
  EXPECT_THAT(report.changes[0].pair_gains, IsEmpty());
  EXPECT_THAT(report.speedup_ratios, IsEmpty());
}

}  // namespace
}  // namespace headrace
