#include "python/native_loader.h"

#include <headrace/error.h>
#include <unistd.h>

#include <utility>

#include "python/keywords.h"
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

py::object batch_object(const py::object& type, const Batch& batch) {
  py::dict fields;
  for (const BatchField& field : batch.fields())
    fields[py::str(field.name)] = object_of(field_tensor(batch, field.name));
  return type(std::move(fields), batch.epoch(), batch.index());
}

}  // namespace

NativeLoader::NativeLoader(const std::string& source, const py::dict& keywords)
    : batch_type_(py::module_::import("headrace.batch").attr("Batch")), process_(::getpid()) {
  py::dict rest(keywords.attr("copy")());
  const Split split = split_of(take(rest, "split"));
  training_ = split == Split::train;
  if (const py::object training = take(rest, "training"); !training.is_none()) training_ = training.cast<bool>();
  if (const py::object seed = take(rest, "seed"); !seed.is_none()) seed_ = seed.cast<std::int64_t>();
  if (seed_ < 0) fail(ErrorCode::invalid_argument, "seed is {}; wanted at least 0", seed_);
  rest["source"] = source;
  set_keywords(fields_of(options_), rest);
  const py::gil_scoped_release released;
  source_ = open_source(options_.source, split);
  loader_ = std::make_unique<Loader>(source_, options_, static_cast<std::uint64_t>(seed_), training_);
}

NativeLoader::~NativeLoader() {
  if (process_ == ::getpid()) return;
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
    batch = epoch_->next();
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
  return keywords;
}

py::dict NativeLoader::statistics() const {
  const LoaderStatistics now = loader_->statistics();
  py::dict statistics;
  statistics["samples"] = now.samples;
  statistics["batches"] = now.batches;
  statistics["busy_s"] = static_cast<double>(now.busy_ns) / 1e9;
  statistics["wait_for_batch_s"] = static_cast<double>(now.wait_for_batch_ns) / 1e9;
  statistics["wait_for_slot_s"] = static_cast<double>(now.wait_for_slot_ns) / 1e9;
  statistics["corrupt"] = now.corrupt;
  statistics["cache_hits"] = now.cache_hits;
  statistics["cache_misses"] = now.cache_misses;
  statistics["pool_bytes"] = now.pool_bytes;
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

}  // namespace headrace::python
