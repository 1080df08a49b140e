// headrace.Loader: the C++ loader as something that Python iterates, one epoch at a time. Methods are called under the
// GIL and let go of it while they wait.
#pragma once

#include <headrace/loader.h>
#include <nanobind/nanobind.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "app/advice/data_context.h"
#include "data/source/process_source.h"
#include "python/core/arrays.h"

namespace headrace::python {

class NativeRequest;

class NativeLoader {
 public:
  // `source`: what open_source() takes, or an object of the user's own (headrace.worker.SourceReader says which).
  // `keywords`: those of DataOptions, transform as a dict of TransformOptions; seed; split, "train", "val" or "test";
  // training, which is split == "train" where it is not given; collate_fn, called with the samples of a batch; for
  // objects worker_type, "thread", or "process": num_workers processes read, and worker_timeout_s;
  // persistent_workers, false: each epoch has threads and processes of its own; enable_async_data_loading, false:
  // request() waits; given_order, called with the epoch that begins: a name for messages, its samples and, or None,
  // where each batch ends, as arrays of int64.
  NativeLoader(const nanobind::object& source, const nanobind::dict& keywords);
  ~NativeLoader();
  NativeLoader(const NativeLoader&) = delete;
  NativeLoader& operator=(const NativeLoader&) = delete;

  // Begins the next epoch, or where start_at() or load_state() put it. Returns a serial number for next() and end().
  std::int64_t begin();
  // The next batch of epoch `serial`, a headrace.Batch or what collate_fn makes of it; none at its end.
  // Error{invalid_argument}: a newer epoch has begun, or a requested batch was not taken.
  std::optional<nanobind::object> next(std::int64_t serial);
  // The same for collect(), without waiting unless loading is not asynchronous. Until then state() stands before the
  // batch.
  BatchFuture request(std::int64_t serial);
  nanobind::object collect(NativeRequest& request, std::int64_t serial);
  // Until collect() would not wait.
  void wait(const NativeRequest& request) const;
  // Ends epoch `serial`, so that nothing more is loaded for it; nothing, where a newer one has begun.
  void end(std::int64_t serial);

  void start_at(std::int64_t epoch, std::int64_t batch);
  // start_at(epoch), but a place within that epoch stays, so that a resumed run may say its epoch, too.
  void set_epoch(std::int64_t epoch);
  nanobind::dict state() const;
  void load_state(const nanobind::dict& stored);

  // Of an epoch. Error{invalid_argument}: orders are given, and none has begun.
  std::int64_t batches() const { return loader_->batches_per_epoch(); }
  bool takes_orders() const { return !given_order_.is_none(); }
  // Of the data set. Error{invalid_argument}: it does not tell.
  std::int64_t samples() const;
  const Source& source() const { return *source_; }
  const DataOptions& options() const { return options_; }
  nanobind::dict keywords();
  // Those of DataOptions alone, of which another extension makes the same DataOptions again.
  nanobind::dict data_keywords();
  nanobind::dict statistics() const;
  // Loader::explain(), as a dict of the names there.
  nanobind::dict explain() const;
  // Advice on loading, as the profile's JSON has it. collate_fn is the loop's own time.
  nanobind::object advice() const;
  // What of its settings could pay. Not for a source in Python.
  DataContext data_context() const;
  // Loader::decisions(), each as a dict of the names there.
  nanobind::list decisions() const;
  // Key, requested, applied, reason.
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> applied() const;
  // Live: between batches, no byte changes. A number or "auto".
  using Number = std::variant<std::int64_t, std::string>;
  void set_num_workers(const Number& count);
  void set_prefetch_batches(const Number& batches);
  void set_cache(const std::string& cache, bool keep);
  std::vector<std::string> worker_deaths() const;
  std::vector<pid_t> worker_processes() const;

 private:
  void set_processes(std::int64_t count, bool is_object);
  void check_worker_init(const nanobind::object& worker_init, bool is_object) const;
  void open_object(const nanobind::object& source, const nanobind::object& worker_init, const nanobind::dict& keywords);
  void set_form(const std::string& form);
  GivenOrder given_order(std::int64_t epoch) const;
  void end_pass();
  void start_workers();
  BatchFuture load_now();
  void check_not_waiting() const;
  void require_own_process() const;
  void require_current(std::int64_t serial) const;
  void check_types() const;
  LoaderState place() const;
  template <class Value, class Apply>
  void set_live(const char* name, const Value& value, const Apply& apply);
  nanobind::object made_of(Batch batch) const;
  nanobind::object collated(const Batch& batch, const nanobind::dict& fields, const nanobind::dict& present) const;

  ArrayMaker arrays_;
  nanobind::object batch_type_;   // headrace.Batch
  nanobind::object ragged_type_;  // headrace.RaggedTensor
  nanobind::object sample_of_;    // headrace._fields.sample_of
  nanobind::object form_;         // SourceReader.form, or none.
  nanobind::object collate_;      // Or none.
  nanobind::object fields_;       // As given, or none.
  nanobind::object given_order_;  // Or none.
  DataOptions options_;
  std::int64_t seed_ = 0;
  bool training_ = true;
  bool are_pairs_ = true;           // Not dicts, where a sample is an image and a label.
  bool in_processes_ = false;       // worker_type = "process".
  std::int64_t process_count_ = 0;  // That read; num_workers is then the threads that wait for them.
  double worker_timeout_s_ = 300;
  bool persistent_workers_ = true;
  bool asynchronous_ = true;
  nanobind::object object_;                   // The user's own source, or none.
  nanobind::object begin_stream_;             // Of one without indices, called with each epoch before it; or none.
  std::shared_ptr<ProcessSource> processes_;  // Where workers read it; source_ is this one, or a part of it.
  std::shared_ptr<const Source> source_;
  std::unique_ptr<Loader> loader_;
  mutable std::int64_t collate_fn_ns_ = 0;  // Guarded by the GIL.
  pid_t process_;                           // That has the loader's threads: a forked child has not.

  // Guards all below; never taken with the GIL held. Recursive: while next() waits, a signal's Python function may ask
  // where the loader stands.
  mutable std::recursive_mutex mutex_;
  bool waiting_ = false;  // Somebody is in next().
  std::unique_ptr<Epoch> epoch_;
  std::int64_t serial_ = 0;
  std::optional<LoaderState> before_request_;  // While a requested batch is not taken.
  std::optional<std::int64_t> loaded_epoch_;   // Of load_state(), until the epoch begins.
};

// What iter(loader) gives. An epoch that nobody holds any more is over.
class NativePass {
 public:
  explicit NativePass(nanobind::object loader);  // A NativeLoader, kept alive.
  ~NativePass();
  NativePass(const NativePass&) = delete;
  NativePass& operator=(const NativePass&) = delete;

  std::optional<nanobind::object> next() { return loader().next(serial_); }
  BatchFuture request() { return loader().request(serial_); }
  nanobind::object collect(NativeRequest& request) { return loader().collect(request, serial_); }
  void wait(const NativeRequest& request) const { loader().wait(request); }

 private:
  NativeLoader& loader() const { return nanobind::cast<NativeLoader&>(loader_); }

  nanobind::object loader_;
  std::int64_t serial_;
};

// What its request() gives. Threads may wait for it while another takes it.
class NativeRequest {
 public:
  NativeRequest(nanobind::object owner, BatchFuture batch) : pass_(std::move(owner)), batch_(std::move(batch)) {}

  NativePass& pass() const { return nanobind::cast<NativePass&>(pass_); }
  // After `limit` at most: whether the batch is there, or has been taken.
  bool is_there(std::chrono::nanoseconds limit) const;
  // Error{invalid_argument}: it has been taken.
  BatchFuture take();

 private:
  nanobind::object pass_;  // A NativePass, kept alive.
  // Guards batch_: exclusive, to take it. Nobody who has it waits for the GIL.
  mutable std::shared_mutex taking_;
  BatchFuture batch_;
};

}  // namespace headrace::python
