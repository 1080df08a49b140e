#include "python/native_loader.h"

#include <headrace/option_fields.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <future>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "app/advice/loading_input.h"
#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "core/options/transforms.h"
#include "data/source/held_out.h"
#include "engine/assembly/training.h"
#include "insight/diagnose/json.h"
#include "python/keywords.h"
#include "python/python_source.h"
#include "python/tensor_object.h"
#include "python/transform_steps.h"
#include "torch/tensor/batch_tensor.h"
#include "torch/tensor/compute.h"

namespace headrace::python {
namespace {

namespace py = pybind11;
using namespace py::literals;

// Takes `name` out of the keywords; none when it is not there.
py::object take(py::dict& keywords, const char* name) {
  return keywords.attr("pop")(name, py::none());
}

// A tensor; a headrace.batch.RaggedTensor; of texts a list.
py::object object_of(const Batch& batch, std::size_t position, const py::object& ragged_type) {
  const BatchField& field = batch.field(position);
  if (!field.is_ragged()) return python::object_of(field_tensor(batch, position));
  if (field.encoding == Encoding::text) {
    py::list texts;
    // Where all are empty there may be no memory.
    const auto* const characters = field.bytes.empty() ? "" : reinterpret_cast<const char*>(field.bytes.data());
    for (std::size_t i = 0; i + 1 < field.offsets.size(); ++i) {
      texts.append(
          py::str(characters + field.offsets[i], static_cast<std::size_t>(field.offsets[i + 1] - field.offsets[i])));
    }
    return texts;
  }
  const FieldShape shape = field_shape(batch, position);
  const py::object shapes = shape.shapes.defined() ? python::object_of(shape.shapes) : py::none();
  return ragged_type(python::object_of(field_tensor(batch, position)), python::object_of(shape.offsets), shapes);
}

Split split_of(const py::object& split) {
  if (split.is_none()) return Split::train;
  return split_named(py::str(split).cast<std::string>(), "split is");
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

template <class Value>
Value entry(const py::dict& state, const char* name) {
  if (!state.contains(name)) fail(ErrorCode::invalid_argument, "python: the state of a Loader has no {}", name);
  try {
    return state[name].cast<Value>();
  } catch (const py::cast_error&) {
    fail(ErrorCode::invalid_argument, "python: the state of a Loader has {} {}", name,
         std::string(py::repr(state[name])));
  }
}

std::optional<double> seconds(std::optional<std::int64_t> ns) {
  if (!ns) return std::nullopt;
  return static_cast<double>(*ns) / 1e9;
}

py::list stages_of(const LoaderStatistics& statistics) {
  py::list list;
  for (const LoaderStage& stage : statistics.stages()) {
    list.append(py::dict("name"_a = stage.name, "records"_a = stage.records, "busy_s"_a = seconds(stage.busy_ns),
                         "wait_for_input_s"_a = seconds(stage.wait_for_input_ns),
                         "wait_for_output_s"_a = seconds(stage.wait_for_output_ns), "bytes"_a = stage.bytes,
                         "queue"_a = stage.queue, "limits"_a = stage.limits));
  }
  return list;
}

bool is_process(const py::object& worker_type) {
  if (worker_type.is_none()) return false;
  const std::string name = py::str(worker_type);
  if (name != "thread" && name != "process") {
    fail(ErrorCode::invalid_argument, "worker_type is \"{}\"; wanted \"thread\" or \"process\"", name);
  }
  return name == "process";
}

// Of this process, where so many others read: while one transforms what it has read, each of them has another that
// waits for it.
std::int64_t threads_for(std::int64_t processes) {
  return processes == 0 ? 0 : std::min<std::int64_t>(processes + 1, 256);  // The key's range.
}

}  // namespace

NativeLoader::NativeLoader(const py::object& source, const py::dict& keywords)
    : batch_type_(py::module_::import("headrace.batch").attr("Batch")),
      ragged_type_(py::module_::import("headrace.batch").attr("RaggedTensor")),
      sample_of_(py::module_::import("headrace._fields").attr("sample_of")),
      form_(py::none()),
      object_(py::none()),
      process_(::getpid()) {
  py::dict rest(keywords.attr("copy")());
  const Split split = split_of(take(rest, "split"));
  training_ = split == Split::train;
  if (const py::object training = take(rest, "training"); !training.is_none()) training_ = training.cast<bool>();
  if (const py::object seed = take(rest, "seed"); !seed.is_none()) seed_ = seed.cast<std::int64_t>();
  if (seed_ < 0) fail(ErrorCode::invalid_argument, "seed is {}; wanted at least 0", seed_);
  const py::object worker_init = take(rest, "worker_init_fn");
  fields_ = take(rest, "fields");
  given_order_ = take(rest, "given_order");
  collate_ = take(rest, "collate_fn");
  if (!collate_.is_none() && PyCallable_Check(collate_.ptr()) == 0) {
    fail(ErrorCode::invalid_argument, "collate_fn is a {}; wanted something to call", Py_TYPE(collate_.ptr())->tp_name);
  }
  const bool is_object = PyUnicode_Check(source.ptr()) == 0 && !py::hasattr(source, "__fspath__");
  const bool in_processes = is_process(take(rest, "worker_type"));
  if (const py::object limit = take(rest, "worker_timeout_s"); !limit.is_none())
    worker_timeout_s_ = limit.cast<double>();
  if (const py::object keep = take(rest, "persistent_workers"); !keep.is_none())
    persistent_workers_ = keep.cast<bool>();
  if (const py::object ahead = take(rest, "enable_async_data_loading"); !ahead.is_none())
    asynchronous_ = ahead.cast<bool>();
  if (!is_object) rest["source"] = source;
  if (!is_object && !fields_.is_none()) {
    fail(ErrorCode::invalid_argument, "fields: {} tells its own; they are said of a source of your own alone",
         std::string(py::str(source)));
  }
  set_keywords(fields_of(options_), rest);
  if (!collate_.is_none() && options_.last_batch == LastBatch::pad) {
    fail(ErrorCode::invalid_argument,
         "last_batch is \"pad\", and a collate_fn does not see the field valid, which marks the padding; wanted keep | "
         "drop");
  }
  if (in_processes) set_processes(options_.num_workers, is_object);
  if (!worker_init.is_none()) check_worker_init(worker_init, is_object);
  if (is_object) {
    open_object(source, worker_init, rest);
    source_ = part_of(source_, options_.val_fraction, static_cast<std::uint64_t>(seed_), split);
  }
  OrderOfEpoch order;
  if (takes_orders()) order = [this](std::int64_t epoch) { return given_order(epoch); };
  const py::gil_scoped_release released;
  if (source_ == nullptr) source_ = open_split(options_, static_cast<std::uint64_t>(seed_), split);
  loader_ = std::make_unique<Loader>(source_, options_, static_cast<std::uint64_t>(seed_), training_,
                                     /*memory_limit=*/0, std::move(order));
}

GivenOrder NativeLoader::given_order(std::int64_t epoch) const {
  const py::gil_scoped_acquire held;
  const auto numbers_of = [](py::handle array) {
    const py::buffer_info numbers = array.cast<py::buffer>().request();
    const auto* const begin = static_cast<const std::int64_t*>(numbers.ptr);
    return std::vector<std::int64_t>(begin, begin + numbers.size);
  };
  const auto given = given_order_(epoch).cast<py::tuple>();
  GivenOrder order{.samples = numbers_of(given[1]), .name = given[0].cast<std::string>()};
  if (!given[2].is_none()) order.batch_ends = numbers_of(given[2]);
  return order;
}

// 0 leaves the reading to the caller, as threads do.
void NativeLoader::set_processes(std::int64_t count, bool is_object) {
  if (!is_object) {
    fail(ErrorCode::invalid_argument,
         "worker_type is \"process\"; native threads read {}: processes are for sources written in Python",
         options_.source);
  }
  if (count == AUTOTUNE) {
    fail(ErrorCode::invalid_argument, "num_workers is \"auto\"; wanted a number with worker_type \"process\"");
  }
  in_processes_ = true;
  process_count_ = count;
  options_.num_workers = threads_for(count);
}

void NativeLoader::check_worker_init(const py::object& worker_init, bool is_object) const {
  if (PyCallable_Check(worker_init.ptr()) == 0) {
    fail(ErrorCode::invalid_argument, "worker_init_fn is a {}; wanted something to call",
         Py_TYPE(worker_init.ptr())->tp_name);
  }
  if (!is_object) {
    fail(ErrorCode::invalid_argument,
         "worker_init_fn: native threads read {}, in which nothing of Python runs; what they draw depends on seed, "
         "epoch and sample alone",
         options_.source);
  }
  if (process_count_ == 0) {
    fail(ErrorCode::invalid_argument,
         "worker_init_fn: threads of this process read the source, and there is no worker process to call it in; "
         "wanted worker_type \"process\" and num_workers of at least 1");
  }
}

void NativeLoader::open_object(const py::object& source, const py::object& worker_init, const py::dict& keywords) {
  check_source(source, "a str as data.source has it, such as \"folder:DIR\", or ");
  if (!(worker_timeout_s_ > 0 && worker_timeout_s_ <= kTimeoutMax)) {
    fail(ErrorCode::invalid_argument, "worker_timeout_s is {}; wanted above 0, at most {}", worker_timeout_s_,
         kTimeoutMax);
  }
  if (keywords.contains("source")) fail(ErrorCode::invalid_argument, "source is given twice");
  object_ = source;
  if (py::isinstance(source, py::module_::import("headrace._stream").attr("Stream"))) {
    begin_stream_ = source.attr("begin");
  }
  const py::object fields = py::module_::import("headrace._fields").attr("declared")(fields_);
  const bool sizes_vary = makes_one_size(options_);
  if (process_count_ == 0) {
    const auto ours = std::make_shared<PythonSource>(source, fields, sizes_vary, options_.limits());
    set_form(ours->form());
    source_ = ours;
    return;
  }
  const auto ours = py::module_::import("headrace._source");
  const std::string payload = ours.attr("payload_of")(source, worker_init, fields).cast<std::string>();
  ProcessSourceOptions how{.name = ours.attr("name_of")(source).cast<std::string>(),
                           .command = ours.attr("worker_command")().cast<std::vector<std::string>>(),
                           .workers = process_count_};
  how.timeout = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(worker_timeout_s_));
  how.sizes_vary = sizes_vary;
  how.sample_bytes_max =
      std::max(how.sample_bytes_max, options_.max_sample_bytes);  // Its slot holds other things, too.
  how.while_starting = check_signals;
  {
    const py::gil_scoped_release released;
    processes_ = std::make_shared<ProcessSource>(std::move(how), std::as_bytes(std::span{payload}));
  }
  source_ = processes_;
  set_form(processes_->form());
}

void NativeLoader::set_form(const std::string& form) {
  if (form.empty()) return;
  form_ = py::module_::import("json").attr("loads")(form);
  are_pairs_ = form == R"(["image", "labels"])";
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

// Its threads did not go through fork, and its locks may be held by them.
void NativeLoader::require_own_process() const {
  if (process_ == ::getpid()) return;
  fail(ErrorCode::unsupported, "python: a headrace.Loader does not go through fork: make one in the new process");
}

void NativeLoader::require_current(std::int64_t serial) const {
  if (serial != serial_) {
    fail(ErrorCode::invalid_argument, "python: a newer epoch of this Loader has begun; one runs at a time");
  }
  if (before_request_) {
    fail(ErrorCode::invalid_argument, "python: the batch that was requested before has not been taken");
  }
}

std::int64_t NativeLoader::begin() {
  require_own_process();
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  check_not_waiting();
  end_pass();  // At most one may be alive.
  before_request_.reset();
  loaded_epoch_.reset();
  if (!persistent_workers_ && serial_ > 0) start_workers();
  if (begin_stream_) {  // Nobody reads between two epochs.
    const std::int64_t epoch = loader_->next_epoch_index();
    const py::gil_scoped_acquire held;
    begin_stream_(epoch);
  }
  epoch_ = std::make_unique<Epoch>(loader_->next_epoch());
  return ++serial_;
}

// `mutex_` is held.
void NativeLoader::end_pass() {
  epoch_.reset();
  if (!persistent_workers_ && processes_ != nullptr && serial_ > 0) processes_->end_workers();
}

// New ones for the next epoch. Threads that wait between two epochs cost nothing, so that they end only here; processes
// have ended with the epoch. `mutex_` is held.
void NativeLoader::start_workers() {
  loader_->renew_workers();
  if (processes_ != nullptr) processes_->start_workers();
}

std::optional<py::object> NativeLoader::next(std::int64_t serial) {
  require_own_process();
  std::optional<Batch> batch;
  {
    const py::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    require_current(serial);
    if (!epoch_) return std::nullopt;
    check_not_waiting();
    const Waiting waiting{waiting_};
    batch = epoch_->next(check_signals);
    if (!batch) end_pass();
  }
  if (!batch) return std::nullopt;
  return made_of(*batch);
}

BatchFuture NativeLoader::request(std::int64_t serial) {
  require_own_process();
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  require_current(serial);
  if (epoch_) {
    LoaderState before = loader_->state();
    auto future = asynchronous_ ? epoch_->request() : load_now();
    before_request_ = std::move(before);
    return future;
  }
  std::promise<std::optional<Batch>> at_the_end;
  at_the_end.set_value(std::nullopt);
  return BatchFuture{at_the_end.get_future()};
}

// A request that has been fulfilled. A signal's exception goes on, and there is no request then. `mutex_` is held.
BatchFuture NativeLoader::load_now() {
  std::promise<std::optional<Batch>> loaded;
  check_not_waiting();
  const Waiting waiting{waiting_};
  try {
    loaded.set_value(epoch_->next(check_signals));
  } catch (const Error&) {
    loaded.set_exception(std::current_exception());
  }
  return BatchFuture{loaded.get_future()};
}

void NativeLoader::wait(const NativeRequest& request) const {
  require_own_process();
  const py::gil_scoped_release released;
  while (!request.is_there(std::chrono::milliseconds(50))) check_signals();
}

py::object NativeLoader::collect(NativeRequest& request, std::int64_t serial) {
  wait(request);
  std::optional<Batch> batch;
  {
    const py::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    BatchFuture taken = request.take();
    if (serial == serial_) before_request_.reset();
    batch = taken.get();
  }
  if (!batch) return py::none();
  py::object made = made_of(*batch);
  if (made.is_none()) {
    fail(ErrorCode::invalid_argument,
         "collate_fn gave None for a batch that was requested, where None is the epoch's end; iterate, or give "
         "something else");
  }
  return made;
}

bool NativeRequest::is_there(std::chrono::nanoseconds limit) const {
  const std::shared_lock lock(taking_);
  return !batch_.valid() || batch_.wait_for(limit) == std::future_status::ready;
}

BatchFuture NativeRequest::take() {
  const std::lock_guard lock(taking_);
  if (!batch_.valid()) fail(ErrorCode::invalid_argument, "python: this batch has been taken already");
  return std::move(batch_);
}

py::object NativeLoader::made_of(const Batch& batch) const {
  py::dict fields, present;
  for (std::size_t i = 0; i < batch.fields().size(); ++i) {
    const BatchField& field = batch.field(i);
    const py::str name(field.name);
    fields[name] = object_of(batch, i, ragged_type_);
    if (!field.present.empty()) present[name] = object_of(field_shape(batch, i).present);
  }
  if (!collate_.is_none()) return collated(batch, fields, present);
  if (present.empty()) return batch_type_(std::move(fields), batch.epoch(), batch.index());
  return batch_type_(std::move(fields), batch.epoch(), batch.index(), std::move(present));
}

py::object NativeLoader::collated(const Batch& batch, const py::dict& fields, const py::dict& present) const {
  const std::int64_t begin_ns = monotonic_ns();
  const auto valid = batch.valid();
  py::list samples;
  if (loader_->schema().is_image_and_labels() && are_pairs_) {
    const py::tuple images = fields["image"].attr("unbind")(0);
    const std::span<const std::byte> labels = batch.field(1).bytes;
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (valid[i] == 0) continue;
      std::int64_t label = 0;
      std::memcpy(&label, labels.data() + i * sizeof label, sizeof label);
      samples.append(py::make_tuple(images[i], label));
    }
  } else {
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (valid[i] != 0) samples.append(sample_of_(fields, present, i, form_));
    }
  }
  py::object collated = collate_(std::move(samples));
  collate_fn_ns_ += monotonic_ns() - begin_ns;
  return collated;
}

void NativeLoader::end(std::int64_t serial) {
  if (process_ != ::getpid()) return;  // The threads are another process's.
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  if (serial == serial_) end_pass();
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
  require_own_process();
  const py::gil_scoped_release released;
  loader_->start_at(epoch, batch);
}

void NativeLoader::set_epoch(std::int64_t epoch) {
  require_own_process();
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  if (loaded_epoch_ != epoch) loader_->start_at(epoch);
}

LoaderState NativeLoader::place() const {
  require_own_process();
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  return before_request_ ? *before_request_ : loader_->state();
}

py::dict NativeLoader::state() const {
  const LoaderState now = place();
  py::dict state;
  state["epoch"] = now.epoch;
  state["position"] = now.position;
  state["seed"] = now.seed;
  state["source"] = now.source;
  state["batch_size"] = now.batch_size;
  state["world_size"] = now.world_size;
  state["options"] = now.options;
  if (now.order != 0) state["order"] = now.order;
  return state;
}

void NativeLoader::load_state(const py::dict& stored) {
  require_own_process();
  py::dict state;
  for (const auto& [name, value] : stored) {
    const std::string key = py::str(name);
    state[py::str(current_name("data." + key).substr(sizeof("data.") - 1))] = value;
  }
  const LoaderState wanted{.epoch = entry<std::int64_t>(state, "epoch"),
                           .position = entry<std::int64_t>(state, "position"),
                           .seed = entry<std::uint64_t>(state, "seed"),
                           .source = entry<std::uint64_t>(state, "source"),
                           .batch_size = entry<std::int64_t>(state, "batch_size"),
                           .world_size = entry<std::int64_t>(state, "world_size"),
                           .options = entry<std::string>(state, "options"),
                           .order = state.contains("order") ? entry<std::uint64_t>(state, "order") : 0};
  const py::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  loader_->restore(wanted);
  loaded_epoch_ = wanted.epoch;
}

std::int64_t NativeLoader::samples() const {
  if (source_->size() != kUnknownSize) return source_->size();
  fail(ErrorCode::invalid_argument, "python: the data set does not tell how many samples it has");
}

py::dict NativeLoader::keywords() {
  py::dict keywords = keywords_of(fields_of(options_));
  keywords["seed"] = seed_;
  keywords["fields"] = fields_;
  keywords["training"] = training_;
  if (process_count_ > 0) keywords["num_workers"] = process_count_;
  keywords["worker_type"] = in_processes_ ? "process" : "thread";
  keywords["worker_timeout_s"] = worker_timeout_s_;
  keywords["persistent_workers"] = persistent_workers_;
  keywords["enable_async_data_loading"] = asynchronous_;
  if (!object_.is_none()) keywords["source"] = object_;
  return keywords;
}

py::dict NativeLoader::statistics() const {
  require_own_process();
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
  statistics["num_workers"] = process_count_ > 0 ? process_count_ : now.num_workers;
  statistics["workers_started"] = now.workers_started;
  statistics["prefetch_batches"] = now.prefetch_batches;
  statistics["latency_p50_s"] = seconds(now.latency_ns_p50);
  statistics["latency_p95_s"] = seconds(now.latency_ns_p95);
  statistics["latency_p99_s"] = seconds(now.latency_ns_p99);
  statistics["stages"] = stages_of(now);
  // Augment and the layout of a batch are one pass; what the loop copies is not known here.
  statistics["costs"] = py::dict("read_s"_a = seconds(now.read_ns), "decode_s"_a = seconds(now.decode_ns),
                                 "augment_s"_a = seconds(now.busy_ns - now.read_ns - now.decode_ns),
                                 "collate_s"_a = seconds(now.collate_ns + collate_fn_ns_), "copy_s"_a = py::none());
  if (processes_ != nullptr) {
    const WorkerStatistics workers = processes_->statistics();
    statistics["workers_started"] = workers.started;
    statistics["workers_died"] = workers.died;
  }
  return statistics;
}

py::dict NativeLoader::explain() const {
  require_own_process();
  LoaderPlan plan;
  {
    const py::gil_scoped_release released;
    plan = loader_->explain();
  }
  const auto list_of = [](const std::vector<LoaderPlan::Pass>& passes) {
    py::list list;
    for (const LoaderPlan::Pass& pass : passes) {
      list.append(py::dict("name"_a = pass.name, "samples"_a = pass.samples, "bytes_in"_a = pass.bytes_in,
                           "bytes_out"_a = pass.bytes_out));
    }
    return list;
  };
  const auto sum_of = [](const std::optional<LoaderPlan::Moved>& moved) -> py::object {
    if (!moved) return py::none();
    return py::dict("copied"_a = moved->copied, "touched"_a = moved->touched);
  };
  return py::dict("samples"_a = plan.samples, "transforms"_a = steps_of(plan.transforms),
                  "passes"_a = list_of(plan.passes), "stage_by_stage"_a = list_of(plan.stage_by_stage),
                  "bytes_a_sample"_a = sum_of(plan.moved),
                  "bytes_a_sample_stage_by_stage"_a = sum_of(plan.moved_stage_by_stage));
}

py::dict NativeLoader::advice() const {
  require_own_process();
  std::string text;
  {
    const py::gil_scoped_release released;
    text = to_json(advise(loading_input(*loader_, detect_machine(), compute_threads()))).dump();
  }
  return py::module_::import("json").attr("loads")(text);
}

DataContext NativeLoader::data_context() const {
  require_own_process();
  return data_context_of(*source_, *loader_, options_, static_cast<std::uint64_t>(seed_));
}

py::list NativeLoader::decisions() const {
  require_own_process();
  std::vector<LoaderDecision> all;
  {
    const py::gil_scoped_release released;
    all = loader_->decisions();
  }
  py::list list;
  for (const LoaderDecision& made : all) {
    const auto value = [&made](std::int64_t number) -> py::object {
      if (made.what == "data.cache") return py::str(made.text_of(number));
      return py::int_(number);
    };
    list.append(py::dict("batch"_a = made.batch, "at_s"_a = made.at_s, "what"_a = made.what,
                         "from"_a = value(made.from), "to"_a = value(made.to), "why"_a = made.why,
                         "before"_a = made.before, "after"_a = made.after, "rolled_back"_a = made.rolled_back));
  }
  return list;
}

std::vector<std::tuple<std::string, std::string, std::string, std::string>> NativeLoader::applied() const {
  require_own_process();
  const py::gil_scoped_release released;
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> all;
  for (Applied& one : std::array{loader_->applied_num_workers(), loader_->applied_prefetch(), loader_->applied_cache(),
                                 loader_->applied_index()}) {
    if (process_count_ > 0 && one.key == "data.num_workers") {
      one.requested = one.applied = std::to_string(process_count_);  // The threads beside them follow from it.
    }
    all.emplace_back(std::move(one.key), std::move(one.requested), std::move(one.applied), std::move(one.reason));
  }
  return all;
}

// Into options_, checked, and by `apply` into the loader; what that refuses is taken back.
template <class Value, class Apply>
void NativeLoader::set_live(const char* name, const Value& value, const Apply& apply) {
  require_own_process();
  DataOptions before = options_;
  field_named(fields_of(options_), name).set(value);
  try {
    const py::gil_scoped_release released;
    apply();
  } catch (...) {
    options_ = std::move(before);
    const py::gil_scoped_release released;
    apply();  // What was done of it until then.
    throw;
  }
}

void NativeLoader::set_num_workers(const Number& count) {
  const auto apply = [this] { loader_->set_num_workers(options_.num_workers); };
  if (!in_processes_) {
    std::visit([&](const auto& plain) { set_live("num_workers", plain, apply); }, count);
    return;
  }
  if (processes_ == nullptr) {
    fail(ErrorCode::invalid_argument,
         "num_workers: this Loader was made with no process; wanted one made with num_workers of at least 1");
  }
  const std::int64_t* processes = std::get_if<std::int64_t>(&count);
  if (processes == nullptr || *processes < 1) {
    fail(ErrorCode::invalid_argument, "num_workers: processes read this source; wanted a number of at least 1");
  }
  {
    const py::gil_scoped_release released;
    processes_->set_workers(*processes);
  }
  try {
    set_live("num_workers", threads_for(*processes), apply);
  } catch (...) {
    const py::gil_scoped_release released;
    processes_->set_workers(process_count_);
    throw;
  }
  process_count_ = *processes;
}

void NativeLoader::set_prefetch_batches(const Number& batches) {
  const auto apply = [this] { loader_->set_prefetch_batches(options_.prefetch_batches); };
  std::visit([&](const auto& plain) { set_live("prefetch_batches", plain, apply); }, batches);
}

void NativeLoader::set_cache(const std::string& cache, bool keep) {
  set_live("cache", cache, [this, keep] { loader_->set_cache(options_.cache, keep); });
}

std::vector<std::string> NativeLoader::worker_deaths() const {
  return processes_ == nullptr ? std::vector<std::string>{} : processes_->statistics().deaths;
}

std::vector<pid_t> NativeLoader::worker_processes() const {
  return processes_ == nullptr ? std::vector<pid_t>{} : processes_->statistics().processes;
}

}  // namespace headrace::python
