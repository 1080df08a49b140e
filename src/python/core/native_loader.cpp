#include "python/core/native_loader.h"

#include <headrace/option_fields.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>
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
#include "insight/diagnose/json.h"
#include "python/core/buffer.h"
#include "python/core/errors.h"
#include "python/core/keywords.h"
#include "python/core/python_source.h"
#include "python/core/torch_facts.h"
#include "python/core/transform_steps.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// Takes `name` out of the keywords; none when it is not there.
nb::object take(nb::dict& keywords, const char* name) {
  return keywords.attr("pop")(name, nb::none());
}

// One number after the other.
nb::object numbers_of(const ArrayMaker& arrays, const std::shared_ptr<const Batch>& batch, const void* values,
                      DType dtype, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t axis = shape.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * shape[axis];
  return arrays.over({values, dtype, shape, strides}, batch);
}

// None: as otherwise. NumPy's truths are of a class "bool", too.
bool flag_or(bool otherwise, const char* name, nb::handle given) {
  if (given.is_none()) return otherwise;
  if (PyLong_Check(given.ptr()) != 0 || class_name(given) == "bool") return truth_of(given);
  fail(ErrorCode::invalid_argument, "{}: wanted True or False, found {}", name, repr_of(given));
}

nb::list texts_of(const BatchField& field) {
  nb::list texts;
  // Where all are empty there may be no memory.
  const auto* const characters = field.bytes.empty() ? "" : reinterpret_cast<const char*>(field.bytes.data());
  for (std::size_t i = 0; i + 1 < field.offsets.size(); ++i) {
    texts.append(
        str_of({characters + field.offsets[i], static_cast<std::size_t>(field.offsets[i + 1] - field.offsets[i])}));
  }
  return texts;
}

// An array; a headrace.batch.RaggedTensor; of texts a list.
nb::object object_of(const ArrayMaker& arrays, const std::shared_ptr<const Batch>& batch, const BatchField& field,
                     const nb::object& ragged_type) {
  if (field.is_ragged() && field.encoding == Encoding::text) return texts_of(field);
  arrays.require(field.dtype, field.name);
  nb::object values = arrays.over({field.bytes.data(), field.dtype, field.shape, field.strides}, batch);
  if (!field.is_ragged()) return values;
  const std::int64_t samples = batch->size();
  nb::object offsets = numbers_of(arrays, batch, field.offsets.data(), DType::i64, std::array{samples + 1});
  nb::object shapes = nb::none();
  if (!field.shapes.empty()) {
    const std::array<std::int64_t, 2> table{samples, std::ssize(field.shapes) / samples};
    shapes = numbers_of(arrays, batch, field.shapes.data(), DType::i64, table);
  }
  return ragged_type(std::move(values), std::move(offsets), std::move(shapes));
}

Split split_of(const nb::object& split) {
  if (split.is_none()) return Split::train;
  return split_named(text_of(split), "split is");
}

constexpr double kTimeoutMax = 1e6;

// Runs what Python's signals ask for, as Ctrl-C; while C++ waits nobody else does.
void check_signals() {
  const nb::gil_scoped_acquire held;
  from_python([] {
    if (PyErr_CheckSignals() != 0) nb::raise_python_error();
  });
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
Value entry(const nb::dict& state, const char* name) {
  if (!state.contains(name)) fail(ErrorCode::invalid_argument, "python: the state of a Loader has no {}", name);
  Value value{};
  if (!nb::try_cast<Value>(state[name], value)) {
    fail(ErrorCode::invalid_argument, "python: the state of a Loader has {} {}", name, repr_of(state[name]));
  }
  return value;
}

std::optional<double> seconds(std::optional<std::int64_t> ns) {
  if (!ns) return std::nullopt;
  return static_cast<double>(*ns) / 1e9;
}

nb::list stages_of(const LoaderStatistics& statistics) {
  nb::list list;
  for (const LoaderStage& stage : statistics.stages()) {
    nb::dict entry;
    entry["name"] = stage.name;
    entry["records"] = stage.records;
    entry["busy_s"] = seconds(stage.busy_ns);
    entry["wait_for_input_s"] = seconds(stage.wait_for_input_ns);
    entry["wait_for_output_s"] = seconds(stage.wait_for_output_ns);
    entry["bytes"] = stage.bytes;
    entry["queue"] = stage.queue;
    entry["limits"] = stage.limits;
    list.append(std::move(entry));
  }
  return list;
}

nb::list passes_of(const std::vector<LoaderPlan::Pass>& passes) {
  nb::list list;
  for (const LoaderPlan::Pass& pass : passes) {
    nb::dict entry;
    entry["name"] = pass.name;
    entry["samples"] = pass.samples;
    entry["bytes_in"] = pass.bytes_in;
    entry["bytes_out"] = pass.bytes_out;
    list.append(std::move(entry));
  }
  return list;
}

nb::object sum_of(const std::optional<LoaderPlan::Moved>& moved) {
  if (!moved) return nb::none();
  nb::dict sum;
  sum["copied"] = moved->copied;
  sum["touched"] = moved->touched;
  return sum;
}

bool is_process(const nb::object& worker_type) {
  if (worker_type.is_none()) return false;
  const std::string name = text_of(worker_type);
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

NativeLoader::NativeLoader(const nb::object& source, const nb::dict& keywords)
    : batch_type_(imported("headrace.batch", "Batch")),
      ragged_type_(imported("headrace.batch", "RaggedTensor")),
      sample_of_(imported("headrace._fields", "sample_of")),
      form_(nb::none()),
      object_(nb::none()),
      process_(::getpid()) {
  auto rest = nb::cast<nb::dict>(keywords.attr("copy")());
  const Split split = split_of(take(rest, "split"));
  training_ = flag_or(split == Split::train, "training", take(rest, "training"));
  if (const nb::object seed = take(rest, "seed"); !seed.is_none()) seed_ = integer_of(seed);
  if (seed_ < 0) fail(ErrorCode::invalid_argument, "seed is {}; wanted at least 0", seed_);
  const nb::object worker_init = take(rest, "worker_init_fn");
  fields_ = take(rest, "fields");
  given_order_ = take(rest, "given_order");
  collate_ = take(rest, "collate_fn");
  if (!collate_.is_none() && PyCallable_Check(collate_.ptr()) == 0) {
    fail(ErrorCode::invalid_argument, "collate_fn is a {}; wanted something to call", class_name(collate_));
  }
  const bool is_object = PyUnicode_Check(source.ptr()) == 0 && !nb::hasattr(source, "__fspath__");
  const bool in_processes = is_process(take(rest, "worker_type"));
  if (const nb::object limit = take(rest, "worker_timeout_s"); !limit.is_none()) worker_timeout_s_ = real_of(limit);
  persistent_workers_ = flag_or(persistent_workers_, "persistent_workers", take(rest, "persistent_workers"));
  asynchronous_ = flag_or(asynchronous_, "enable_async_data_loading", take(rest, "enable_async_data_loading"));
  if (!is_object) rest["source"] = source;
  if (!is_object && !fields_.is_none()) {
    fail(ErrorCode::invalid_argument, "fields: {} tells its own; they are said of a source of your own alone",
         text_of(source));
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
  if (source_ == nullptr) {
    const nb::gil_scoped_release released;
    source_ = open_split(options_, static_cast<std::uint64_t>(seed_), split);
  }
  check_types();
  OrderOfEpoch order;
  if (takes_orders()) order = [this](std::int64_t epoch) { return given_order(epoch); };
  const nb::gil_scoped_release released;
  loader_ = std::make_unique<Loader>(source_, options_, static_cast<std::uint64_t>(seed_), training_,
                                     /*memory_limit=*/0, std::move(order));
}

// What no array of NumPy's holds is refused here, not when the first batch comes.
void NativeLoader::check_types() const {
  if (arrays_.makes_tensors()) return;
  const Schema& schema = source_->info().schema;
  for (const FieldSpec& field : schema.fields()) arrays_.require(field.dtype, "the field " + field.name);
  if (!schema.image()) return;
  const ImageShape stored = stored_shape(schema);
  const auto list = transforms_in_force(options_, training_, {stored.height, stored.width});
  if (const auto dtype = dtype_named(dtype_after(list))) {
    arrays_.require(*dtype, "the field " + schema[*schema.image()].name);
  }
}

GivenOrder NativeLoader::given_order(std::int64_t epoch) const {
  const nb::gil_scoped_acquire held;
  const auto given = nb::cast<nb::tuple>(given_order_(epoch));
  GivenOrder order{.samples = integers_in(given[1]), .name = text_of(given[0])};
  if (!given[2].is_none()) order.batch_ends = integers_in(given[2]);
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

void NativeLoader::check_worker_init(const nb::object& worker_init, bool is_object) const {
  if (PyCallable_Check(worker_init.ptr()) == 0) {
    fail(ErrorCode::invalid_argument, "worker_init_fn is a {}; wanted something to call", class_name(worker_init));
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

void NativeLoader::open_object(const nb::object& source, const nb::object& worker_init, const nb::dict& keywords) {
  check_source(source, "a str as data.source has it, such as \"folder:DIR\", or ");
  if (!(worker_timeout_s_ > 0 && worker_timeout_s_ <= kTimeoutMax)) {
    fail(ErrorCode::invalid_argument, "worker_timeout_s is {}; wanted above 0, at most {}", worker_timeout_s_,
         kTimeoutMax);
  }
  if (keywords.contains("source")) fail(ErrorCode::invalid_argument, "source is given twice");
  object_ = source;
  if (nb::isinstance(source, imported("headrace._stream", "Stream"))) begin_stream_ = nb::getattr(source, "begin");
  const nb::object fields = imported("headrace._fields", "declared")(fields_);
  const bool sizes_vary = makes_one_size(options_);
  if (process_count_ == 0) {
    const auto ours = std::make_shared<PythonSource>(source, fields, sizes_vary, options_.limits());
    set_form(ours->form());
    source_ = ours;
    return;
  }
  const nb::module_ ours = nb::module_::import_("headrace._source");
  const Buffer payload{ours.attr("payload_of")(source, worker_init, fields), PyBUF_SIMPLE};
  ProcessSourceOptions how{.name = text_of(ours.attr("name_of")(source)),
                           .command = nb::cast<std::vector<std::string>>(ours.attr("worker_command")()),
                           .workers = process_count_};
  how.timeout = std::chrono::ceil<std::chrono::milliseconds>(std::chrono::duration<double>(worker_timeout_s_));
  how.sizes_vary = sizes_vary;
  how.sample_bytes_max =
      std::max(how.sample_bytes_max, options_.max_sample_bytes);  // Its slot holds other things, too.
  how.while_starting = check_signals;
  {
    const nb::gil_scoped_release released;
    processes_ = std::make_shared<ProcessSource>(std::move(how), std::as_bytes(payload.bytes()));
  }
  source_ = processes_;
  set_form(processes_->form());
}

void NativeLoader::set_form(const std::string& form) {
  if (form.empty()) return;
  form_ = imported("json", "loads")(form);
  are_pairs_ = form == R"(["image", "labels"])";
}

NativeLoader::~NativeLoader() {
  if (process_ == ::getpid()) {
    // Its threads may need the GIL to end.
    const nb::gil_scoped_release released;
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
  const nb::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  check_not_waiting();
  end_pass();  // At most one may be alive.
  before_request_.reset();
  loaded_epoch_.reset();
  if (!persistent_workers_ && serial_ > 0) start_workers();
  if (begin_stream_) {  // Nobody reads between two epochs.
    const std::int64_t epoch = loader_->next_epoch_index();
    const nb::gil_scoped_acquire held;
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

std::optional<nb::object> NativeLoader::next(std::int64_t serial) {
  require_own_process();
  std::optional<Batch> batch;
  {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    require_current(serial);
    if (!epoch_) return std::nullopt;
    check_not_waiting();
    const Waiting waiting{waiting_};
    batch = epoch_->next(check_signals);
    if (!batch) end_pass();
  }
  if (!batch) return std::nullopt;
  return made_of(*std::move(batch));
}

BatchFuture NativeLoader::request(std::int64_t serial) {
  require_own_process();
  const nb::gil_scoped_release released;
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
  const nb::gil_scoped_release released;
  while (!request.is_there(std::chrono::milliseconds(50))) check_signals();
}

nb::object NativeLoader::collect(NativeRequest& request, std::int64_t serial) {
  wait(request);
  std::optional<Batch> batch;
  {
    const nb::gil_scoped_release released;
    const std::lock_guard lock(mutex_);
    BatchFuture taken = request.take();
    if (serial == serial_) before_request_.reset();
    batch = taken.get();
  }
  if (!batch) return nb::none();
  nb::object made = made_of(*std::move(batch));
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

nb::object NativeLoader::made_of(Batch batch) const {
  const auto owner = std::make_shared<const Batch>(std::move(batch));  // Owners: the arrays over its memory.
  nb::dict fields, present;
  for (const BatchField& field : owner->fields()) {
    const nb::str name = str_of(field.name);
    fields[name] = object_of(arrays_, owner, field, ragged_type_);
    if (field.present.empty()) continue;
    present[name] = numbers_of(arrays_, owner, field.present.data(), DType::u8, std::array{owner->size()});
  }
  if (!collate_.is_none()) return collated(*owner, fields, present);
  if (present.empty()) return batch_type_(std::move(fields), owner->epoch(), owner->index());
  return batch_type_(std::move(fields), owner->epoch(), owner->index(), std::move(present));
}

nb::object NativeLoader::collated(const Batch& batch, const nb::dict& fields, const nb::dict& present) const {
  const std::int64_t begin_ns = monotonic_ns();
  const auto valid = batch.valid();
  nb::list samples;
  if (loader_->schema().is_image_and_labels() && are_pairs_) {
    const nb::object image = fields["image"];
    const nb::tuple images(image);  // Of a tensor what its unbind() gives.
    const std::span<const std::byte> labels = batch.field(1).bytes;
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (valid[i] == 0) continue;
      std::int64_t label = 0;
      std::memcpy(&label, labels.data() + i * sizeof label, sizeof label);
      samples.append(nb::make_tuple(nb::handle(images[i]), label));
    }
  } else {
    for (std::size_t i = 0; i < valid.size(); ++i) {
      if (valid[i] != 0) samples.append(sample_of_(fields, present, i, form_));
    }
  }
  nb::object collated = collate_(std::move(samples));
  collate_fn_ns_ += monotonic_ns() - begin_ns;
  return collated;
}

void NativeLoader::end(std::int64_t serial) {
  if (process_ != ::getpid()) return;  // The threads are another process's.
  const nb::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  if (serial == serial_) end_pass();
}

NativePass::NativePass(nb::object loader)
    : loader_(std::move(loader)), serial_(nb::cast<NativeLoader&>(loader_).begin()) {}

NativePass::~NativePass() {
  loader().end(serial_);
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
  const nb::gil_scoped_release released;
  loader_->start_at(epoch, batch);
}

void NativeLoader::set_epoch(std::int64_t epoch) {
  require_own_process();
  const nb::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  if (loaded_epoch_ != epoch) loader_->start_at(epoch);
}

LoaderState NativeLoader::place() const {
  require_own_process();
  const nb::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  return before_request_ ? *before_request_ : loader_->state();
}

nb::dict NativeLoader::state() const {
  const LoaderState now = place();
  nb::dict state;
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

void NativeLoader::load_state(const nb::dict& stored) {
  require_own_process();
  nb::dict state;
  for (const auto& [name, value] : stored) {
    state[str_of(current_name("data." + text_of(name)).substr(sizeof("data.") - 1))] = value;
  }
  const LoaderState wanted{.epoch = entry<std::int64_t>(state, "epoch"),
                           .position = entry<std::int64_t>(state, "position"),
                           .seed = entry<std::uint64_t>(state, "seed"),
                           .source = entry<std::uint64_t>(state, "source"),
                           .batch_size = entry<std::int64_t>(state, "batch_size"),
                           .world_size = entry<std::int64_t>(state, "world_size"),
                           .options = entry<std::string>(state, "options"),
                           .order = state.contains("order") ? entry<std::uint64_t>(state, "order") : 0};
  const nb::gil_scoped_release released;
  const std::lock_guard lock(mutex_);
  loader_->restore(wanted);
  loaded_epoch_ = wanted.epoch;
}

std::int64_t NativeLoader::samples() const {
  if (source_->size() != kUnknownSize) return source_->size();
  fail(ErrorCode::invalid_argument, "python: the data set does not tell how many samples it has");
}

nb::dict NativeLoader::data_keywords() {
  return keywords_of(fields_of(options_));
}

nb::dict NativeLoader::keywords() {
  nb::dict keywords = data_keywords();
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

nb::dict NativeLoader::statistics() const {
  require_own_process();
  LoaderStatistics now;
  {
    const nb::gil_scoped_release released;  // A thread that holds the loader's lock may be waiting for the GIL.
    now = loader_->statistics();
  }
  nb::dict statistics;
  statistics["samples"] = now.samples;
  statistics["batches"] = now.batches;
  statistics["busy_s"] = static_cast<double>(now.busy_ns) / 1e9;
  statistics["wait_for_batch_s"] = static_cast<double>(now.wait_for_batch_ns) / 1e9;
  statistics["wait_for_slot_s"] = static_cast<double>(now.wait_for_slot_ns) / 1e9;
  statistics["corrupt"] = now.corrupt;
  statistics["cache_hits"] = now.cache_hits;
  statistics["cache_misses"] = now.cache_misses;
  statistics["cache_bytes"] = now.cache_bytes;
  statistics["index_hits"] = now.index_hits;
  statistics["index_misses"] = now.index_misses;
  statistics["index_refused"] = now.index_refused;
  statistics["pool_bytes"] = now.pool_bytes;
  statistics["retired_batches"] = now.retired_batches;
  statistics["num_workers"] = process_count_ > 0 ? process_count_ : now.num_workers;
  statistics["workers_started"] = now.workers_started;
  statistics["prefetch_batches"] = now.prefetch_batches;
  statistics["latency_p50_s"] = seconds(now.latency_ns_p50);
  statistics["latency_p95_s"] = seconds(now.latency_ns_p95);
  statistics["latency_p99_s"] = seconds(now.latency_ns_p99);
  statistics["stages"] = stages_of(now);
  nb::dict costs;
  costs["read_s"] = seconds(now.read_ns);
  costs["decode_s"] = seconds(now.decode_ns);
  // Augment and the layout of a batch are one pass; what the loop copies is not known here.
  costs["augment_s"] = seconds(now.busy_ns - now.read_ns - now.decode_ns);
  costs["collate_s"] = seconds(now.collate_ns + collate_fn_ns_);
  costs["copy_s"] = nb::none();
  statistics["costs"] = std::move(costs);
  if (processes_ != nullptr) {
    const WorkerStatistics workers = processes_->statistics();
    statistics["workers_started"] = workers.started;
    statistics["workers_died"] = workers.died;
  }
  return statistics;
}

nb::dict NativeLoader::explain() const {
  require_own_process();
  LoaderPlan plan;
  {
    const nb::gil_scoped_release released;
    plan = loader_->explain();
  }
  nb::dict told;
  told["samples"] = plan.samples;
  told["retired_batches"] = plan.retired_batches;
  told["transforms"] = steps_of(plan.transforms);
  told["passes"] = passes_of(plan.passes);
  told["stage_by_stage"] = passes_of(plan.stage_by_stage);
  told["bytes_a_sample"] = sum_of(plan.moved);
  told["bytes_a_sample_stage_by_stage"] = sum_of(plan.moved_stage_by_stage);
  return told;
}

nb::object NativeLoader::advice() const {
  require_own_process();
  const Machine machine = detect_machine();
  const std::int64_t threads = compute_threads();  // Of the consumer.
  std::string text;
  {
    const nb::gil_scoped_release released;
    text = to_json(advise(loading_input(*loader_, machine, threads))).dump();
  }
  return imported("json", "loads")(text);
}

DataContext NativeLoader::data_context() const {
  require_own_process();
  const nb::gil_scoped_release released;
  return data_context_of(*source_, *loader_, options_, static_cast<std::uint64_t>(seed_));
}

nb::list NativeLoader::decisions() const {
  require_own_process();
  std::vector<LoaderDecision> all;
  {
    const nb::gil_scoped_release released;
    all = loader_->decisions();
  }
  nb::list list;
  for (const LoaderDecision& made : all) {
    const auto value = [&made](std::int64_t number) -> nb::object {
      if (made.what == "data.cache") return str_of(made.text_of(number));
      return nb::int_(number);
    };
    nb::dict entry;
    entry["batch"] = made.batch;
    entry["at_s"] = made.at_s;
    entry["what"] = made.what;
    entry["from"] = value(made.from);
    entry["to"] = value(made.to);
    entry["why"] = made.why;
    entry["before"] = made.before;
    entry["after"] = made.after;
    entry["rolled_back"] = made.rolled_back;
    list.append(std::move(entry));
  }
  return list;
}

std::vector<std::tuple<std::string, std::string, std::string, std::string>> NativeLoader::applied() const {
  require_own_process();
  const nb::gil_scoped_release released;
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
    const nb::gil_scoped_release released;
    apply();
  } catch (...) {
    options_ = std::move(before);
    const nb::gil_scoped_release released;
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
    const nb::gil_scoped_release released;
    processes_->set_workers(*processes);
  }
  try {
    set_live("num_workers", threads_for(*processes), apply);
  } catch (...) {
    const nb::gil_scoped_release released;
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
