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

namespace headrace::python {

class NativeLoader {
 public:
  // `keywords`: those of DataOptions, transform as a dict of TransformOptions; seed; split, "train" or "test";
  // training, which is split == "train" where it is not given.
  NativeLoader(const std::string& source, const pybind11::dict& keywords);
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

 private:
  struct Position {
    std::int64_t epoch = 0;
    std::int64_t batch = 0;
  };
  Position resume_position() const;  // Where a process that goes on begins.

  pybind11::object batch_type_;  // headrace.Batch
  DataOptions options_;
  std::int64_t seed_ = 0;
  bool training_ = true;
  std::shared_ptr<const Source> source_;
  std::unique_ptr<Loader> loader_;
  pid_t process_;  // That has the loader's threads: a forked child has not.

  mutable std::mutex mutex_;  // Guards all below; never taken with the GIL held.
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
