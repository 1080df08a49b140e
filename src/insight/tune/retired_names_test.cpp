// Ledgers that earlier versions wrote, whose settings have other names today.
#include <gtest/gtest.h>
#include <headrace/ledger.h>

#include <string>

namespace headrace {
namespace {

Settings read_settings(const std::string& written) {
  const std::string text = R"({"format": "headrace-ledger", "version": 1,
    "baseline": {"samples_per_second": 850.0, "settings": {}},
    "best": {"samples_per_second": 850.0, "settings": )" +
                           written + R"(},
    "speedup": {"median": 1.0, "low": 1.0, "high": 1.0, "pairs": 0}, "budget_s": 20.0, "spent_s": 20.1, "trials": []})";
  return parse_ledger(text, "ledger.json").best;
}

TEST(RetiredNames, OfALedgerBecomeThoseOfTodayWhenItIsRead) {
  EXPECT_EQ(read_settings(R"({"data.threads": "3", "optimizer.implementation": "\"fused\""})"),
            (Settings{{"data.num_workers", "3"}, {"optimizer.fused", "true"}}));
  EXPECT_EQ(read_settings(R"({"data.workers": "2"})"), (Settings{{"data.num_workers", "2"}}));
}

TEST(RetiredNames, OfThreadsAndProcessesInOneLedgerTheNumberOfWhatLoadedStays) {
  EXPECT_EQ(read_settings(R"({"data.threads": "3", "data.workers": "2"})"), (Settings{{"data.num_workers", "2"}}));
  EXPECT_EQ(read_settings(R"({"data.loader": "\"dataloader\"", "data.threads": "3", "data.workers": "0"})"),
            (Settings{{"data.loader", "\"dataloader\""}, {"data.num_workers", "0"}}));
  EXPECT_EQ(read_settings(R"({"data.loader": "\"headrace\"", "data.threads": "3", "data.workers": "0"})"),
            (Settings{{"data.loader", "\"headrace\""}, {"data.num_workers", "3"}}));
}

}  // namespace
}  // namespace headrace
