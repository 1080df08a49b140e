// headrace.Loader: the C++ loader as something that Python iterates, one epoch at a time. Methods are called under the
// GIL and let go of it while they wait.
#pragma once

#include <headrace/loader.h>
#include <pybind11/pybind11.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "data/process_source.h"

namespace headrace::python {

class NativeLoader {
 public:
  // `source`: what open_source() takes, or an object of the user's own (headrace.worker.SourceReader says which).
  // `keywords`: those of DataOptions, transform as a dict of TransformOptions; seed; split, "train" or "test";
  // training, which is split == "train" where it is not given; for objects workers, 0 or the number of processes that
  // read, and worker_timeout_s.
  NativeLoader(const pybind11::object& source, const pybind11::dict& keywords);
  ~NativeLoader();
  NativeLoader(const NativeLoader&) = delete;
  NativeLoader& operator=(const NativeLoader&) = delete;

  // Begins a pass and returns its number: the next epoch, or where start_at() or load_state() put it.
  std::int64_t begin();
  // The next batch of pass `serial`, a headrace.Batch; none at its end. Error{invalid_argument}: a newer pass has
  // begun.
  pybind11::object next(std::int64_t serial);
  // Ends pass `serial`, so that nothing more is loaded for it; nothing, where a newer one has begun.
  void end(std::int64_t serial);

  void start_at(std::int64_t epoch, std::int64_t batch);
  pybind11::dict state() const;
  void load_state(const pybind11::dict& state);

  std::int64_t batches() const { return loader_->batches_per_epoch(); }
  const Source& source() const { return *source_; }
  const DataOptions& options() const { return options_; }
  pybind11::dict keywords();
  pybind11::dict statistics() const;
  // Live: between batches, no byte changes.
  void set_threads(std::int64_t threads);
  void set_prefetch_batches(std::int64_t batches);
  void set_cache(const std::string& cache);
  // The same. Error{invalid_argument} where no processes read.
  void set_workers(std::int64_t workers);
  std::vector<std::string> worker_deaths() const;
  std::vector<pid_t> worker_processes() const;

 private:
  void open_object(const pybind11::object& source, const pybind11::dict& keywords);
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t batch = 0;
  };
  void check_not_waiting() const;
  Position resume_position() const;  // Where a process that goes on begins.

  pybind11::object batch_type_;  // headrace.Batch
  DataOptions options_;
  std::int64_t seed_ = 0;
  bool training_ = true;
  std::int64_t workers_ = 0;
  double worker_timeout_s_ = 300;
  pybind11::object object_;                   // The user's own source, or none.
  std::shared_ptr<ProcessSource> processes_;  // Where workers read it; the same as source_ then.
  std::shared_ptr<const Source> source_;
  std::unique_ptr<Loader> loader_;
  pid_t process_;  // That has the loader's threads: a forked child has not.

  // Guards all below; never taken with the GIL held. Recursive: while next() waits, a signal's Python function may ask
  // where the loader stands.
  mutable std::recursive_mutex mutex_;
  bool waiting_ = false;  // Somebody is in next().
  std::unique_ptr<Epoch> epoch_;
  std::int64_t serial_ = 0;
  std::optional<Position> next_;  // Set by start_at() and load_state().
  Position at_;                   // Of the newest pass: its epoch, and batches delivered.
  bool begun_ = false;
};

// What iter(loader) gives. A pass that nobody holds any more is over.
class NativePass {
 public:
  explicit NativePass(pybind11::object loader);  // A NativeLoader, kept alive.
  ~NativePass();
  NativePass(const NativePass&) = delete;
  NativePass& operator=(const NativePass&) = delete;

  pybind11::object next() { return loader_.cast<NativeLoader&>().next(serial_); }

 private:
  pybind11::object loader_;
  std::int64_t serial_;
};

}  // namespace headrace::python
