#include "core/memory/page_lock.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/memory/pool.h"

namespace headrace {
namespace {

// What is locked, as functions without state must write it down.
struct Pages {
  std::mutex mutex;  // Guards all of it.
  std::map<void*, std::size_t> locked;
  int refused = 0, unlocked_by_others = 0;
  bool refuses = false;
};
Pages pages;

bool lock(void* memory, std::size_t bytes) {
  const std::lock_guard guard(pages.mutex);
  if (pages.refuses) {
    ++pages.refused;
    return false;
  }
  return pages.locked.emplace(memory, bytes).second;
}

void unlock(void* memory) {
  const std::lock_guard guard(pages.mutex);
  EXPECT_EQ(pages.locked.erase(memory), 1U) << "unlocked what is not locked";
}

void unlock_of_another(void*) {
  const std::lock_guard guard(pages.mutex);
  ++pages.unlocked_by_others;
}

// No block is lent here, so that nothing is asked.
PageMark mark() {
  ADD_FAILURE() << "marked what is not lent";
  return {};
}
bool has_passed(void*) {
  ADD_FAILURE() << "asked without a mark";
  return true;
}
void wait(void*) {
  ADD_FAILURE() << "waited without a mark";
}

constexpr PageLock kPages{lock, unlock, mark, has_passed, wait};

class PageLocks : public testing::Test {
 protected:
  void SetUp() override {
    pages.locked.clear();
    pages.refused = pages.unlocked_by_others = 0;
    pages.refuses = false;
  }
  void TearDown() override {
    install_page_lock({});
    EXPECT_TRUE(pages.locked.empty()) << "a block was freed and its pages are still locked";
  }
};

TEST_F(PageLocks, BlocksAreLockedOnceAndUnlockedBeforeTheyAreFreed) {
  install_page_lock(kPages);
  {
    BlockPool pool{4096, 2};
    auto a = pool.try_take(), b = pool.try_take();
    EXPECT_EQ(pages.locked.size(), 2U);
    EXPECT_EQ(pages.locked.at(a.bytes().data()), 4096U);
    a = {};
    a = pool.try_take();  // As it was, locked.
    EXPECT_EQ(pages.locked.size(), 2U);
    b = {};
    pool.set_capacity(1);
    EXPECT_EQ(pages.locked.size(), 1U);
    a = {};
    EXPECT_EQ(pages.locked.size(), 1U) << "it is at home";
  }
  EXPECT_TRUE(pages.locked.empty());
}

TEST_F(PageLocks, ABlockAboveTheCapacityIsUnlockedAsItComesHome) {
  install_page_lock(kPages);
  BlockPool pool{4096, 1};
  auto block = pool.try_take();
  pool.set_capacity(0);
  EXPECT_EQ(pages.locked.size(), 1U);
  block = {};
  EXPECT_TRUE(pages.locked.empty());
}

TEST_F(PageLocks, ABlockThatOutlivesItsPoolIsUnlockedByItself) {
  install_page_lock(kPages);
  std::optional<BlockPool> pool{std::in_place, 4096, 1};
  auto block = pool->try_take();
  pool.reset();
  EXPECT_EQ(pages.locked.size(), 1U);
  const BlockPool::Block moved{std::move(block)};
  EXPECT_EQ(pages.locked.count(moved.bytes().data()), 1U);
}

TEST_F(PageLocks, BlocksOfBeforeStayAsTheyAre) {
  BlockPool pool{4096, 2};
  auto before = pool.try_take();
  install_page_lock(kPages);
  auto after = pool.try_take();
  EXPECT_EQ(pages.locked.count(before.bytes().data()), 0U);
  EXPECT_EQ(pages.locked.count(after.bytes().data()), 1U);
}

TEST_F(PageLocks, ABlockIsUnlockedByWhatLockedIt) {
  install_page_lock(kPages);
  {
    BlockPool pool{4096, 2};
    auto locked = pool.try_take();
    install_page_lock({lock, unlock_of_another, mark, has_passed, wait});
    install_page_lock({});
    auto unlocked = pool.try_take();
    EXPECT_EQ(pages.locked.size(), 1U);
  }
  EXPECT_TRUE(pages.locked.empty());
  EXPECT_EQ(pages.unlocked_by_others, 0);
}

TEST_F(PageLocks, ALockThatFailsLeavesTheBlockAsItIs) {
  pages.refuses = true;
  install_page_lock(kPages);
  BlockPool pool{4096, 1};
  auto block = pool.try_take();
  EXPECT_TRUE(block);
  EXPECT_EQ(pages.refused, 1);
  block = {};
  block = pool.try_take();
  EXPECT_EQ(pages.refused, 1) << "it is asked once a block";
}

TEST(PageLockDeathTest, APageLockIsWholeOrNone) {
  EXPECT_DEATH(install_page_lock({.lock = lock}), "half of a page lock");
  PageLock half = kPages;
  half.mark = nullptr;
  EXPECT_DEATH(install_page_lock(half), "half of a page lock");
  half = kPages;
  half.wait = nullptr;
  EXPECT_DEATH(install_page_lock(half), "half of a page lock");
  EXPECT_DEATH(install_page_lock({.has_passed = has_passed}), "half of a page lock");
}

}  // namespace
}  // namespace headrace
