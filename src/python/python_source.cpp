#include "python/python_source.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <limits>
#include <mutex>
#include <utility>

#include "core/base/fail.h"
#include "data/source/payload_check.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Who is inside Python's code on behalf of a loader's thread.
class PythonGate {
 public:
  // False: Python is ending.
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }
  void leave() {
    {
      const std::lock_guard lock(mutex_);
      --inside_;
    }
    left_.notify_all();
  }
  // Waits until nobody is inside; not under the GIL.
  void close() {
    std::unique_lock lock(mutex_);
    closed_ = true;
    if (owner_ == ::getpid()) left_.wait(lock, [this] { return inside_ == 0; });  // Threads do not go through fork.
  }

 private:
  const pid_t owner_ = ::getpid();
  std::mutex mutex_;  // Guards all below.
  std::condition_variable left_;
  bool closed_ = false;
  int inside_ = 0;
};

// Lives as long as the process: threads may ask it while statics are destroyed.
PythonGate& gate() {
  static auto* const the_gate = new PythonGate;
  return *the_gate;
}

class GatePass {
 public:
  explicit GatePass(const std::string& name) {
    if (!gate().enter()) fail(ErrorCode::cancelled, "python: {} is read while Python ends", name);
  }
  ~GatePass() { gate().leave(); }
  GatePass(const GatePass&) = delete;
  GatePass& operator=(const GatePass&) = delete;
};

// Python's state of a thread that Python did not start, for as long as the thread lives. Without it each call would
// make one anew, and what the source keeps in a threading.local, such as an open file, would be gone after a sample.
class KeptThreadState {
 public:
  KeptThreadState() {
    if (PyGILState_GetThisThreadState() != nullptr) return;  // Python's own thread.
    held_ = PyGILState_Ensure();
    state_ = PyEval_SaveThread();
  }
  ~KeptThreadState() {
    if (state_ == nullptr || !gate().enter()) return;  // Python drops it when it ends.
    PyEval_RestoreThread(state_);
    PyGILState_Release(held_);
    gate().leave();
  }
  KeptThreadState(const KeptThreadState&) = delete;
  KeptThreadState& operator=(const KeptThreadState&) = delete;

 private:
  PyThreadState* state_ = nullptr;
  PyGILState_STATE held_ = PyGILState_UNLOCKED;
};

void close_gate_at_exit() {
  static bool registered = false;  // Under the GIL.
  if (std::exchange(registered, true)) return;
  py::module_::import("atexit").attr("register")(py::cpp_function([] {
    const py::gil_scoped_release released;
    gate().close();
  }));
}

// What is no Exception, such as KeyboardInterrupt, is cancelled.
ErrorCode code_of(const py::error_already_set& raised) {
  return raised.matches(PyExc_Exception) ? ErrorCode::corrupt_data : ErrorCode::cancelled;
}

// Throws what a source of unknown size raised, where that is about the whole epoch: its end, or an error of its
// iterator, which no policy for corrupt samples covers, or an epoch without end would follow.
void throw_of_epoch(const py::error_already_set& raised, const std::string& sample) {
  const py::module_ reader = py::module_::import("headrace.worker");
  if (raised.matches(reader.attr("EndOfSamples")))
    throw EndOfSamples(raised.value().attr("samples").cast<std::int64_t>());
  if (!raised.matches(reader.attr("IteratorError"))) return;
  const py::object error = raised.value().attr("error");
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  throw SampleException(ErrorCode::internal, py::error_already_set(), sample);
}

// Each field of the reader: name, number of its type, shape, number of its encoding, whether a sample may lack it.
Schema schema_of(const py::object& reader) {
  std::vector<FieldSpec> fields;
  for (const py::handle each : reader.attr("schema")) {
    const auto field = py::reinterpret_borrow<py::tuple>(each);
    fields.push_back({.name = field[0].cast<std::string>(),
                      .dtype = dtype_numbered(field[1].cast<std::int64_t>()).value(),
                      .shape = field[2].cast<Shape>(),
                      .encoding = static_cast<Encoding>(field[3].cast<int>()),
                      .optional = field[4].cast<bool>()});
  }
  return Schema{std::move(fields)};
}

SourceFacts facts_of(const py::object& reader, const std::string& name, bool sizes_vary) {
  const auto number = [&reader](const char* attribute) { return reader.attr(attribute).cast<std::int64_t>(); };
  const Schema told = schema_of(reader);
  SourceFacts facts{.name = name,
                    .size = number("size"),
                    .classes = number("classes"),
                    .schema = sizes_vary ? with_any_size(told) : told,
                    .labels = {}};
  if (facts.size == -1) facts.size = kUnknownSize;
  if (facts.classes == -1) facts.classes = kUnknownClasses;
  const py::object labels = reader.attr("labels");
  if (!labels.is_none()) facts.labels = labels.cast<std::vector<std::int64_t>>();
  facts.form = py::module_::import("json").attr("dumps")(reader.attr("form")).cast<std::string>();
  check(facts);
  return facts;
}

void set_number(const FieldSpec& field, py::handle number, Payload& payload) {
  switch (field.dtype) {
    case DType::boolean:
      return payload.set_number(number.cast<bool>());
    case DType::f64:
      return payload.set_number(number.cast<double>());
    default:  // The reader gives no other numbers.
      return payload.set_number(number.cast<std::int64_t>());
  }
}

// What the reader gives of a field: None; a number; the bytes of a file; or the bytes of an array, and its shape. More
// than `bytes_max` of these stay where Python has them, until they are refused.
void set_payload(const FieldSpec& field, py::handle given, std::int64_t bytes_max, Payload& payload,
                 std::vector<std::uint8_t>& buffer) {
  if (given.is_none()) {
    payload.kind = Payload::Kind::absent;
    return;
  }
  if (PyLong_Check(given.ptr()) || PyFloat_Check(given.ptr())) return set_number(field, given, payload);
  const bool is_array = PyTuple_Check(given.ptr());
  const py::object content = is_array ? py::object(given.cast<py::tuple>()[0]) : given.cast<py::object>();
  const py::buffer_info bytes = py::buffer(content).request();
  const auto size = static_cast<std::size_t>(bytes.size * bytes.itemsize);
  std::span elements{static_cast<const std::uint8_t*>(bytes.ptr), size};
  if (std::ssize(elements) <= bytes_max) {
    if (buffer.size() < size) buffer.resize(size);
    if (size > 0) std::memcpy(buffer.data(), bytes.ptr, size);
    elements = std::span{buffer}.first(size);
  }
  if (!is_array) return payload.set_file(elements);
  const py::tuple shape = given.cast<py::tuple>()[1];
  std::array<std::int64_t, kRankMax> axes{};
  const std::size_t rank = std::min(shape.size(), kRankMax);  // The reader gives no array of more.
  for (std::size_t axis = 0; axis < rank; ++axis) axes[axis] = shape[axis].cast<std::int64_t>();
  payload.set_bytes(elements, std::span{axes}.first(rank));
}

}  // namespace

void check_source(const py::object& source, std::string_view others) {
  const bool is_text = PyUnicode_Check(source.ptr()) != 0 || py::isinstance<py::bytes>(source);
  if (!is_text && py::hasattr(source, "__getitem__") && py::hasattr(source, "__len__") &&
      !py::isinstance<py::dict>(source)) {
    return;
  }
  fail(ErrorCode::invalid_argument, "source is a {}; wanted {}an object with __len__ and __getitem__",
       Py_TYPE(source.ptr())->tp_name, others);
}

SampleException::SampleException(ErrorCode code, py::error_already_set raised, const std::string& sample)
    : Error(code, fmt::format("data: {}: {}", sample, raised.what())), raised_(std::move(raised)), sample_(sample) {}

void SampleException::restore() const {
  py::object value = raised_.value();
  if (py::hasattr(value, "add_note")) value.attr("add_note")(fmt::format("headrace: raised by sample {}", sample_));
  py::object type = raised_.type(), trace = raised_.trace();
  PyErr_Restore(type.release().ptr(), value.release().ptr(), trace.release().ptr());
}

PythonSource::PythonSource(const py::object& source, const py::object& fields, bool sizes_vary, SampleLimits limits)
    : limits_(limits) {
  const py::object reader = py::module_::import("headrace.worker").attr("SourceReader")(source, fields);
  const py::object name = py::module_::import("headrace._source").attr("name_of")(source);
  facts_ = facts_of(reader, name.cast<std::string>(), sizes_vary);
  info_ = info_of(facts_);
  labels_.emplace(facts_);
  read_ = reader.attr("read");
  close_gate_at_exit();
}

PythonSource::~PythonSource() {
  if (Py_IsInitialized() == 0) {
    static_cast<void>(read_.release());
    return;
  }
  const py::gil_scoped_acquire held;
  read_ = py::object();
}

void PythonSource::read(std::int64_t index, Sample& sample) const {
  const GatePass pass{facts_.name};
  thread_local const KeptThreadState kept_state;
  const py::gil_scoped_acquire held;
  try {
    const py::tuple given = read_(index);
    for (std::size_t i = 0; i < sample.size(); ++i) {
      const FieldSpec& field = facts_.schema[i];
      const bool is_image = field.encoding == Encoding::image;  // Who loads refuses it by a sentence of its own.
      const std::int64_t bytes_max = is_image ? std::numeric_limits<std::int64_t>::max() : limits_.bytes;
      set_payload(field, given[i], bytes_max, sample[i], sample.buffer(i));
      if (sample[i].kind != Payload::Kind::bytes || std::ssize(sample[i].bytes) <= bytes_max) continue;
      refuse_sample(payload_fault(field, sample[i], limits_).value(), name(index));
    }
    labels_->note(facts_, index, sample);
  } catch (py::error_already_set& raised) {
    if (facts_.size == kUnknownSize) throw_of_epoch(raised, name(index));
    const ErrorCode code = code_of(raised);
    throw SampleException(code, std::move(raised), name(index));
  }
}

}  // namespace headrace::python
