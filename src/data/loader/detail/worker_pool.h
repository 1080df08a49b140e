// Threads that run one function until there are fewer wanted. Their number is changed with the loader's `resizing`
// held; what they read of it is guarded by its `mutex`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/condition_variable.h"
#include "data/loader/detail/workspace.h"

namespace headrace::detail {

class WorkerPool {
 public:
  // Of the loader, which outlives its threads.
  struct Waiting {
    std::mutex& mutex;  // Not held by who resizes.
    std::condition_variable& room;
    std::condition_variable& ready;
  };
  struct Work {
    std::function<std::unique_ptr<Workspace>()> make_workspace;  // Called by who resizes.
    // A thread, until wants(worker) is false; it calls note_end() then, without leaving `mutex` between the two.
    std::function<void(std::int64_t worker, Workspace& workspace)> run;
  };
  // Whether to wait for surplus threads to end.
  enum class Joining { now, later };

  WorkerPool(const Waiting& waiting, Work work) : waiting_(waiting), work_(std::move(work)) {}
  ~WorkerPool() { resize(0, Joining::now); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Tells all threads and the consumer, who loads by itself where there are none. Error{io} or {out_of_memory} leaves
  // as many as could be had.
  void resize(std::int64_t count, Joining joining);
  // In force: workers 0 to count() - 1 run. One of the two locks is held.
  std::int64_t count() const noexcept { return count_; }

  // ---- `mutex` is held ----
  bool wants(std::int64_t worker) const noexcept { return worker < count_; }
  void note_end(std::int64_t worker) noexcept { runs_[static_cast<std::size_t>(worker)] = false; }
  std::int64_t started() const noexcept { return started_; }  // Threads so far, ended ones included.

 private:
  void add();

  const Waiting waiting_;
  const Work work_;
  std::int64_t count_ = 0;
  std::int64_t started_ = 0;
  std::vector<bool> runs_;  // By worker; of those that are not wanted, whether it has not ended yet.
  std::vector<std::jthread> threads_;
};

}  // namespace headrace::detail
