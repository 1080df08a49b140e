#include "python/native_loader.h"

#include <headrace/error.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <chrono>
#include <span>
#include <utility>

#include "python/keywords.h"
#include "python/python_source.h"
#include "python/tensor_object.h"
#include "tensor/batch_tensor.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Takes `name` out of the keywords; none when it is not there.
py::object take(py::dict& keywords, const char* name) {
  return keywords.attr("pop")(name, py::none());
}

Split split_of(const py::object& split) {
  if (split.is_none()) return Split::train;
  const auto name = py::str(split).cast<std::string>();
  if (name == "train") return Split::train;
  if (name == "test") return Split::test;
  fail(ErrorCode::invalid_argument, "split is \"{}\"; wanted train | test", name);
}

constexpr double kTimeoutMax = 1e6;

// Runs what Python's signals ask for, as Ctrl-C; while C++ waits nobody else does.
void check_signals() {
  const py::gil_scoped_acquire held;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Sets a flag for as long as it lives.
class Waiting {
 public:
  explicit Waiting(bool& flag) : flag_(flag) { flag_ = true; }
  ~Waiting() { flag_ = false; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  bool& flag_;
};

py::object batch_object(const py::object& type, const Batch& batch) {
  py::dict fields;
  for (const BatchField& field : batch.fields())
    fields[py::str(field.name)] = object_of(field_tensor(batch, field.name));
  return type(std::move(fields), batch.epoch(), batch.index());
}

}  // namespace

NativeLoader::NativeLoader(const py::object& source, const py::dict& keywords)
    : batch_type_(py::module_::import("headrace.batch").attr("Batch")), object_(py::none()), process_(::getpid()) {
  py::dict rest(keywords.attr("copy")());
  const Split split = split_of(take(rest, "split"));
  training_ = split == Split::train;
  if (const py::object training = take(rest, "training"); !training.is_none()) training_ = training.cast<bool>();
  if (const py::object seed = take(rest, "seed"); !seed.is_none()) seed_ = seed.cast<std::int64_t>();
  if (seed_ < 0) fail(ErrorCode::invalid_argument, "seed is {}; wanted at least 0", seed_);
  const bool is_object = PyUnicode_Check(source.ptr()) == 0 && !py::hasattr(source, "__fspath__");
  if (const py::object workers = take(rest, "workers"); !workers.is_none()) workers_ = workers.cast<std::int64_t>();
  if (const py::object limit = take(rest, "worker_timeout_s"); !limit.is_none())
    worker_timeout_s_ = limit.cast<double>();
  if (!is_object) rest["source"] = source;
  set_keywords(fields_of(options_), rest);
  if (is_object) {
    // While one transforms what it has read, each worker has another that waits for it.
    if (workers_ > 0 && !rest.contains("threads")) options_.threads = workers_ + 1;
    open_object(source, rest);
  } else if (workers_ != 0) {
    fail(ErrorCode::invalid_argument,
         "workers is {}; native threads read {}: workers are for sources written in Python", workers_, options_.source);
  }
  const py::gil_scoped_release released;
  if (source_ == nullptr) source_ = open_source(options_.source, split);
  loader_ = std::make_unique<Loader>(source_, options_, static_cast<std::uint64_t>(seed_), training_);
}

void NativeLoader::open_object(const py::object& source, const py::dict& keywords) {
  if (!py::hasattr(source, "__getitem__") || !py::hasattr(source, "__len__") || py::isinstance<py::dict>(source)) {
    fail(ErrorCode::invalid_argument,
         "source is a {}; wanted \"idx:DIR\", \"folder:DIR\" or an object with __len__ and __getitem__",
         Py_TYPE(source.ptr())->tp_name);
  }
  if (workers_ < 0) fail(ErrorCode::invalid_argument, "workers is {}; wanted at least 0", workers_);
  if (!(worker_timeout_s_ > 0 && worker_timeout_s_ <= kTimeoutMax)) {
    fail(ErrorCode::invalid_argument, "worker_timeout_s is {}; wanted above 0, at most {}", worker_timeout_s_,
         kTimeoutMax);
  }
  if (keywords.contains("source")) fail(ErrorCode::invalid_argument, "source is given twice");
  object_ = source;
  const bool sizes_vary = options_.transform.size > 0;
  if (workers_ == 0) {
    source_ = std::make_shared<PythonSource>(source, sizes_vary);
    return;
  }
  const auto ours = py::module_::import("headrace._source");
  const std::string payload = ours.attr("payload_of")(source).cast<std::string>();
  ProcessSourceOptions how{.name = ours.attr("name_of")(source).cast<std::string>(),
                           .command = ours.attr("worker_command")().cast<std::vector<std::string>>(),
                           .workers = workers_};
  how.timeout = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(worker_timeout_s_));
  how.sizes_vary = sizes_vary;
  how.while_starting = check_signals;
  const py::gil_scoped_release released;
  processes_ = std::make_shared<ProcessSource>(std::move(how), std::as_bytes(std::span{payload}));
  source_ = processes_;
}

NativeLoader::~NativeLoader() {
  if (process_ == ::getpid()) {
    // Its threads may need the GIL to end.
    const py::gil_scoped_release released;
    epoch_.reset();
    loader_.reset();
    return;
  }
  // A child of fork has the memory, but not the threads that the destructors would join.
  static_cast<void>(epoch_.release());
  static_cast<void>(loader_.release());
}

std::int64_t NativeLoader::begin() {
  if (process_ != ::getpid()) {
    fail(ErrorCode::unsupported, "python: a headrace.Loader does not go through fork: make one in the new process");
  }
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  check_not_waiting();
  Position from;
  if (next_) {
    from = *std::exchange(next_, std::nullopt);
  } else if (begun_) {
    from = {at_.epoch + 1, 0};
  }
  epoch_.reset();  // At most one may be alive.
  epoch_ = std::make_unique<Epoch>(loader_->epoch(from.epoch, from.batch));
  at_ = from;
  begun_ = true;
  return ++serial_;
}

py::object NativeLoader::next(std::int64_t serial) {
  std::optional<Batch> batch;
  {
    const py::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    if (serial != serial_) {
      fail(ErrorCode::invalid_argument, "python: a newer pass over this Loader has begun; one runs at a time");
    }
    if (!epoch_) return py::none();
    check_not_waiting();
    const Waiting waiting{waiting_};
    batch = epoch_->next(check_signals);
    if (batch) {
      ++at_.batch;
    } else {
      epoch_.reset();
    }
  }
  return batch ? batch_object(batch_type_, *batch) : py::none();
}

void NativeLoader::end(std::int64_t serial) {
  if (process_ != ::getpid()) return;  // The threads are another process's.
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  if (serial == serial_) epoch_.reset();
}

NativePass::NativePass(py::object loader)
    : loader_(std::move(loader)), serial_(loader_.cast<NativeLoader&>().begin()) {}

NativePass::~NativePass() {
  loader_.cast<NativeLoader&>().end(serial_);
}

void NativeLoader::check_not_waiting() const {
  if (waiting_) {
    fail(ErrorCode::invalid_argument,
         "python: this Loader is waiting for a batch already; a signal's function may ask "
         "where it stands, not go on");
  }
}

void NativeLoader::start_at(std::int64_t epoch, std::int64_t batch) {
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  if (epoch < 0 || batch < 0 || batch > loader_->batches_per_epoch()) {
    fail(ErrorCode::invalid_argument, "python: position epoch {}, batch {}: wanted at least 0 and at most {} batches",
         epoch, batch, loader_->batches_per_epoch());
  }
  next_ = batch == loader_->batches_per_epoch() ? Position{epoch + 1, 0} : Position{epoch, batch};
}

NativeLoader::Position NativeLoader::resume_position() const {
  if (next_) return *next_;
  if (!begun_) return {};
  return at_.batch >= loader_->batches_per_epoch() ? Position{at_.epoch + 1, 0} : at_;
}

py::dict NativeLoader::state() const {
  Position position;
  {
    const py::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    position = resume_position();
  }
  py::dict state;
  state["epoch"] = position.epoch;
  state["batch"] = position.batch;
  state["seed"] = seed_;
  state["batch_size"] = options_.batch_size;
  state["fingerprint"] = source_->fingerprint();
  return state;
}

void NativeLoader::load_state(const py::dict& state) {
  const auto check = [&state](const char* name, const py::object& ours) {
    if (!state.contains(name)) fail(ErrorCode::invalid_argument, "python: the state of a Loader has no {}", name);
    if (!py::object(state[name]).equal(ours)) {
      fail(ErrorCode::invalid_argument, "python: the state is of a Loader with {} {}, this one has {}", name,
           std::string(py::str(state[name])), std::string(py::str(ours)));
    }
  };
  check("seed", py::int_(seed_));
  check("batch_size", py::int_(options_.batch_size));
  check("fingerprint", py::int_(source_->fingerprint()));
  if (!state.contains("epoch") || !state.contains("batch")) {
    fail(ErrorCode::invalid_argument, "python: the state of a Loader has no epoch or no batch");
  }
  start_at(state["epoch"].cast<std::int64_t>(), state["batch"].cast<std::int64_t>());
}

py::dict NativeLoader::keywords() {
  py::dict keywords = keywords_of(fields_of(options_));
  keywords["seed"] = seed_;
  keywords["training"] = training_;
  keywords["workers"] = workers_;
  keywords["worker_timeout_s"] = worker_timeout_s_;
  if (!object_.is_none()) keywords["source"] = object_;
  return keywords;
}

py::dict NativeLoader::statistics() const {
  LoaderStatistics now;
  {
    const py::gil_scoped_release released;  // A thread that holds the loader's lock may be waiting for the GIL.
    now = loader_->statistics();
  }
  py::dict statistics;
  statistics["samples"] = now.samples;
  statistics["batches"] = now.batches;
  statistics["busy_s"] = static_cast<double>(now.busy_ns) / 1e9;
  statistics["wait_for_batch_s"] = static_cast<double>(now.wait_for_batch_ns) / 1e9;
  statistics["wait_for_slot_s"] = static_cast<double>(now.wait_for_slot_ns) / 1e9;
  statistics["corrupt"] = now.corrupt;
  statistics["cache_hits"] = now.cache_hits;
  statistics["cache_misses"] = now.cache_misses;
  statistics["index_hits"] = now.index_hits;
  statistics["index_misses"] = now.index_misses;
  statistics["index_refused"] = now.index_refused;
  statistics["pool_bytes"] = now.pool_bytes;
  if (processes_ != nullptr) {
    const WorkerStatistics workers = processes_->statistics();
    statistics["workers_started"] = workers.started;
    statistics["workers_died"] = workers.died;
  }
  return statistics;
}

void NativeLoader::set_threads(std::int64_t threads) {
  field_named(fields_of(options_), "threads").set(threads);
  const py::gil_scoped_release released;
  loader_->set_threads(threads);
}

void NativeLoader::set_prefetch_batches(std::int64_t batches) {
  field_named(fields_of(options_), "prefetch_batches").set(batches);
  const py::gil_scoped_release released;
  loader_->set_prefetch_batches(batches);
}

void NativeLoader::set_cache(const std::string& cache) {
  const Cache before = options_.cache;
  field_named(fields_of(options_), "cache").set(cache);
  try {
    const py::gil_scoped_release released;
    loader_->set_cache(options_.cache);
  } catch (...) {
    options_.cache = before;
    throw;
  }
}

void NativeLoader::set_workers(std::int64_t workers) {
  if (processes_ == nullptr) {
    fail(ErrorCode::invalid_argument, "workers: no processes read this source; make a Loader with workers=1 or more");
  }
  {
    const py::gil_scoped_release released;
    processes_->set_workers(workers);
  }
  workers_ = workers;
}

std::vector<std::string> NativeLoader::worker_deaths() const {
  return processes_ == nullptr ? std::vector<std::string>{} : processes_->statistics().deaths;
}

std::vector<pid_t> NativeLoader::worker_processes() const {
  return processes_ == nullptr ? std::vector<pid_t>{} : processes_->statistics().processes;
}

}  // namespace headrace::python
