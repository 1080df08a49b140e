#include "core/memory/accounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace headrace {

bool operator==(const AccountBytes& a, const AccountBytes& b) {
  return a.name == b.name && a.bytes == b.bytes;
}

namespace {

using testing::ElementsAre;

TEST(Accounts, AreListedOldestFirstWhileTheyLive) {
  EXPECT_TRUE(account_bytes().empty());
  std::atomic<std::int64_t> weights{100};
  const Account first{"parameters", [&] { return weights.load(); }};
  {
    const Account second{"cache", [] { return 7; }};
    weights = 250;
    EXPECT_THAT(account_bytes(), ElementsAre(AccountBytes{"parameters", 250}, AccountBytes{"cache", 7}));
  }
  EXPECT_THAT(account_bytes(), ElementsAre(AccountBytes{"parameters", 250}));
}

TEST(Accounts, OfOneNameAreAddedUp) {
  const Account train{"batches", [] { return 1000; }};
  const Account between{"cache", [] { return 1; }};
  const Account test{"batches", [] { return 24; }};
  EXPECT_THAT(account_bytes(), ElementsAre(AccountBytes{"batches", 1024}, AccountBytes{"cache", 1}));
}

TEST(Accounts, NobodyAsksAnAccountThatIsGone) {
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&done] {
      while (!done) {
        for (const AccountBytes& account : account_bytes()) EXPECT_EQ(account.bytes, 42);
      }
    });
  }
  for (int i = 0; i < 2000; ++i) {
    auto bytes = std::make_unique<std::int64_t>(42);
    const Account account{"short-lived", [&bytes] { return *bytes; }};
  }  // The account first, then what it reads.
  done = true;
  for (std::thread& reader : readers) reader.join();
}

TEST(AccountsDeathTest, OtherIsWhatIsInNoAccount) {
  EXPECT_DEATH((Account{"other", [] { return 1; }}), "account \"other\"");
  EXPECT_DEATH((Account{"", [] { return 1; }}), "account");
}

}  // namespace
}  // namespace headrace
