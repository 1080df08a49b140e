#include "data/loader/detail/worker_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "core/base/error_of.h"

namespace headrace::detail {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

// A loader without data: its threads are told apart, and wait until they are not wanted or, while `is_held`, longer.
class Threads {
 public:
  std::set<std::int64_t> running() {
    std::lock_guard lock(mutex_);
    return *running_set;
  }
  // Until as many run.
  void wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return running_set->size() == count; });
  }
  void hold(bool is_held) {
    {
      std::lock_guard lock(mutex_);
      is_held_ = is_held;
    }
    room_.notify_all();
  }
  std::int64_t started() {
    std::lock_guard lock(mutex_);
    return pool.started();
  }

 private:
  std::unique_ptr<Workspace> make_workspace() {
    if (++workspaces_ > workspaces_max) throw std::bad_alloc();
    return std::make_unique<Workspace>(2);
  }
  void run(std::int64_t worker) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(running_set->insert(worker).second) << worker << " runs twice";
    changed_.notify_all();
    while (pool.wants(worker) || is_held_) room_.wait(lock);
    running_set->erase(worker);
    pool.note_end(worker);
  }

  std::mutex mutex_;
  std::condition_variable room_, ready_, changed_;
  bool is_held_ = false;
  int workspaces_ = 0;

 public:
  int workspaces_max = 1000;
  // Outlives this where a test holds it.
  std::shared_ptr<std::set<std::int64_t>> running_set = std::make_shared<std::set<std::int64_t>>();
  // The last: its threads use the others.
  WorkerPool pool{
      WorkerPool::Waiting{mutex_, room_, ready_},
      WorkerPool::Work{[this] { return make_workspace(); }, [this](std::int64_t worker, Workspace&) { run(worker); }}};
};

TEST(WorkerPool, ThreadsRunAsManyAsThereAreWanted) {
  Threads threads;
  EXPECT_EQ(threads.pool.count(), 0);
  threads.pool.resize(3, WorkerPool::Joining::now);
  EXPECT_EQ(threads.pool.count(), 3);
  threads.wait_for(3);
  EXPECT_THAT(threads.running(), UnorderedElementsAre(0, 1, 2));
  threads.pool.resize(1, WorkerPool::Joining::now);
  EXPECT_THAT(threads.running(), UnorderedElementsAre(0));
  threads.pool.resize(2, WorkerPool::Joining::later);
  threads.wait_for(2);
  EXPECT_EQ(threads.started(), 4);
}

TEST(WorkerPool, EachPlaceHasOneThreadHoweverOftenTheirNumberChanges) {
  Threads threads;
  std::int64_t count = 0;
  for (std::int64_t round = 0; round < 200; ++round) {
    count = (count * 5 + round * 3 + 1) % 7;
    threads.pool.resize(count, round % 3 == 0 ? WorkerPool::Joining::now : WorkerPool::Joining::later);
    EXPECT_EQ(threads.pool.count(), count);
  }
  threads.pool.resize(4, WorkerPool::Joining::now);
  threads.pool.resize(5, WorkerPool::Joining::later);
  threads.wait_for(5);
  EXPECT_THAT(threads.running(), UnorderedElementsAre(0, 1, 2, 3, 4));
}

TEST(WorkerPool, AThreadThatIsWantedAgainBeforeItHasEndedGoesOn) {
  Threads threads;
  threads.pool.resize(2, WorkerPool::Joining::later);
  threads.wait_for(2);
  threads.hold(true);  // It reads a sample that takes for ever.
  threads.pool.resize(1, WorkerPool::Joining::later);
  EXPECT_EQ(threads.pool.count(), 1);
  threads.pool.resize(2, WorkerPool::Joining::later);
  threads.hold(false);
  EXPECT_EQ(threads.started(), 2);
  EXPECT_THAT(threads.running(), UnorderedElementsAre(0, 1));
}

TEST(WorkerPool, ItsEndJoins) {
  std::shared_ptr<std::set<std::int64_t>> running;
  {
    Threads threads;
    threads.pool.resize(3, WorkerPool::Joining::later);
    threads.wait_for(3);
    running = threads.running_set;
    EXPECT_EQ(running->size(), 3U);
  }
  EXPECT_TRUE(running->empty());
}

TEST(WorkerPool, AnErrorLeavesAsManyAsCouldBeHad) {
  Threads threads;
  threads.workspaces_max = 2;
  EXPECT_THAT(error_of(ErrorCode::out_of_memory, [&] { threads.pool.resize(5, WorkerPool::Joining::now); }),
              HasSubstr("no memory for loader thread 3 of 5"));
  EXPECT_EQ(threads.pool.count(), 2);
  threads.wait_for(2);
}

}  // namespace
}  // namespace headrace::detail
