#include "data/loader/detail/worker_pool.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/fail.h"

namespace headrace::detail {

void WorkerPool::resize(std::int64_t count, Joining joining) {
  const bool grows = count > count_;
  {
    std::lock_guard lock(waiting_.mutex);
    count_ = std::min(count_, count);
  }
  waiting_.room.notify_all();
  waiting_.ready.notify_one();  // Without workers a waiting consumer loads by itself.
  // A worker beyond `count_` ends after its chunk.
  while (joining == Joining::now && std::ssize(threads_) > count) threads_.pop_back();  // Joins.
  if (!grows) return;
  try {
    while (count_ < count) add();
  } catch (const std::bad_alloc&) {
    waiting_.ready.notify_one();
    fail(ErrorCode::out_of_memory, "data: no memory for loader thread {} of {}", count_ + 1, count);
  } catch (const std::system_error& refused) {
    waiting_.ready.notify_one();
    fail(ErrorCode::io, "data: cannot start loader thread {} of {}: {}", count_ + 1, count, refused.what());
  }
}

// One that was to end and has not yet goes on in its place: what it reads may take for ever.
void WorkerPool::add() {
  const std::int64_t worker = count_;
  const auto place = static_cast<std::size_t>(worker);
  if (std::ssize(threads_) <= worker) threads_.emplace_back();
  auto workspace = work_.make_workspace();
  {
    std::lock_guard lock(waiting_.mutex);
    if (std::ssize(runs_) <= worker) runs_.push_back(false);
    count_ = worker + 1;
    if (runs_[place]) return;
    runs_[place] = true;
  }
  try {
    threads_[place] = std::jthread(  // Joins the one that stood there, which has ended.
        [this, worker, workspace = std::move(workspace)] { work_.run(worker, *workspace); });
  } catch (...) {
    std::lock_guard lock(waiting_.mutex);
    count_ = worker;
    runs_[place] = false;
    throw;
  }
  std::lock_guard lock(waiting_.mutex);
  ++started_;
}

}  // namespace headrace::detail
