#include "python/core/python_source.h"

#include <headrace/trace.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/condition_variable.h"
#include "core/base/fail.h"
#include "data/source/payload_check.h"
#include "python/core/buffer.h"
#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

constexpr SpanName kLockPython{"lock_python", "wait"};       // A loader's thread, of who runs Python.
constexpr SpanName kReadByPython{"read_by_python", "work"};  // Value: the sample's index.

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
  imported("atexit", "register")(nb::cpp_function([] {
    const nb::gil_scoped_release released;
    gate().close();
  }));
}

// What is no Exception, such as KeyboardInterrupt, is cancelled.
ErrorCode code_of(const nb::python_error& raised) {
  return raised.matches(PyExc_Exception) ? ErrorCode::corrupt_data : ErrorCode::cancelled;
}

// Throws what a source of unknown size raised, where that is about the whole epoch: its end, or an error of its
// iterator, which no policy for corrupt samples covers, or an epoch without end would follow.
void throw_of_epoch(const nb::python_error& raised, const std::string& sample) {
  if (raised.matches(imported("headrace.worker", "EndOfSamples"))) {
    throw EndOfSamples(integer_of(nb::getattr(raised.value(), "samples")));
  }
  if (!raised.matches(imported("headrace.worker", "IteratorError"))) return;
  const nb::object error = nb::getattr(raised.value(), "error");
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw SampleException(ErrorCode::internal, nb::python_error(), sample);
}

// Each field of the reader: name, number of its type, shape, number of its encoding, whether a sample may lack it.
Schema schema_of(const nb::object& reader) {
  std::vector<FieldSpec> fields;
  for (const nb::handle each : nb::getattr(reader, "schema")) {
    const auto field = nb::borrow<nb::tuple>(each);
    fields.push_back({.name = text_of(field[0]),
                      .dtype = dtype_numbered(integer_of(field[1])).value(),
                      .shape = nb::cast<Shape>(field[2]),
                      .encoding = static_cast<Encoding>(integer_of(field[3])),
                      .optional = truth_of(field[4])});
  }
  return Schema{std::move(fields)};
}

SourceFacts facts_of(const nb::object& reader, const std::string& name, bool sizes_vary) {
  const auto number = [&reader](const char* attribute) { return integer_of(nb::getattr(reader, attribute)); };
  const Schema told = schema_of(reader);
  SourceFacts facts{.name = name,
                    .size = number("size"),
                    .classes = number("classes"),
                    .schema = sizes_vary ? with_any_size(told) : told,
                    .labels = {}};
  if (facts.size == -1) facts.size = kUnknownSize;
  if (facts.classes == -1) facts.classes = kUnknownClasses;
  const nb::object labels = nb::getattr(reader, "labels");
  if (!labels.is_none()) facts.labels = integers_in(labels);
  facts.form = text_of(imported("json", "dumps")(nb::getattr(reader, "form")));
  check(facts);
  return facts;
}

void set_number(const FieldSpec& field, nb::handle number, Payload& payload) {
  switch (field.dtype) {
    case DType::boolean:
      return payload.set_number(truth_of(number));
    case DType::f64:
      return payload.set_number(real_of(number));
    default:  // The reader gives no other numbers.
      return payload.set_number(integer_of(number));
  }
}

// What the reader gives of a field: None; a number; the bytes of a file; or the bytes of an array, and its shape. More
// than `bytes_max` of these stay where Python has them, until they are refused.
void set_payload(const FieldSpec& field, nb::handle given, std::int64_t bytes_max, Payload& payload,
                 std::vector<std::uint8_t>& buffer) {
  if (given.is_none()) {
    payload.kind = Payload::Kind::absent;
    return;
  }
  if (PyLong_Check(given.ptr()) || PyFloat_Check(given.ptr())) return set_number(field, given, payload);
  const bool is_array = PyTuple_Check(given.ptr()) != 0;
  const nb::object content = is_array ? nb::steal(PySequence_GetItem(given.ptr(), 0)) : nb::borrow(given);
  const Buffer lent{content, PyBUF_SIMPLE};
  std::span elements = lent.bytes();
  if (std::ssize(elements) <= bytes_max) {
    const std::size_t size = elements.size();
    if (buffer.size() < size) buffer.resize(size);
    if (size > 0) std::memcpy(buffer.data(), elements.data(), size);
    elements = std::span{buffer}.first(size);
  }
  if (!is_array) return payload.set_file(elements);
  const nb::tuple shape(nb::steal(PySequence_GetItem(given.ptr(), 1)));
  std::array<std::int64_t, kRankMax> axes{};
  const std::size_t rank = std::min(shape.size(), kRankMax);  // The reader gives no array of more.
  for (std::size_t axis = 0; axis < rank; ++axis) axes[axis] = integer_of(shape[axis]);
  payload.set_bytes(elements, std::span{axes}.first(rank));
}

}  // namespace

void check_source(const nb::object& source, std::string_view others) {
  const bool is_text = PyUnicode_Check(source.ptr()) != 0 || PyBytes_Check(source.ptr()) != 0;
  if (!is_text && nb::hasattr(source, "__getitem__") && nb::hasattr(source, "__len__") &&
      PyDict_Check(source.ptr()) == 0) {
    return;
  }
  fail(ErrorCode::invalid_argument, "source is a {}; wanted {}an object with __len__ and __getitem__",
       class_name(source), others);
}

SampleException::SampleException(ErrorCode code, nb::python_error raised, const std::string& sample)
    : Error(code, fmt::format("data: {}: {}", sample, sentence_of(raised))),
      raised_(std::move(raised)),
      sample_(sample) {}

void SampleException::restore() const {
  const nb::handle value = raised_.value();
  if (nb::hasattr(value, "add_note")) {
    nb::getattr(value, "add_note")(str_of(fmt::format("headrace: raised by sample {}", sample_)));
  }
  nb::python_error(raised_).restore();  // A copy, as several may ask for it.
}

PythonSource::PythonSource(const nb::object& source, const nb::object& fields, bool sizes_vary, SampleLimits limits)
    : limits_(limits) {
  const nb::object reader = imported("headrace.worker", "SourceReader")(source, fields);
  facts_ = facts_of(reader, text_of(imported("headrace._source", "name_of")(source)), sizes_vary);
  info_ = info_of(facts_);
  labels_.emplace(facts_);
  read_ = nb::getattr(reader, "read");
  close_gate_at_exit();
}

PythonSource::~PythonSource() {
  if (Py_IsInitialized() == 0) {
    static_cast<void>(read_.release());
    return;
  }
  const nb::gil_scoped_acquire held;
  read_.reset();
}

void PythonSource::read(std::int64_t index, Sample& sample) const {
  const GatePass pass{facts_.name};
  thread_local const KeptThreadState kept_state;
  std::optional<nb::gil_scoped_acquire> held;
  {
    Span span{kLockPython};
    held.emplace();
  }
  Span span{kReadByPython, index};
  try {
    const auto given = nb::cast<nb::tuple>(read_(index));
    for (std::size_t i = 0; i < sample.size(); ++i) {
      const FieldSpec& field = facts_.schema[i];
      const bool is_image = field.encoding == Encoding::image;  // Who loads refuses it by a sentence of its own.
      const std::int64_t bytes_max = is_image ? std::numeric_limits<std::int64_t>::max() : limits_.bytes;
      set_payload(field, given[i], bytes_max, sample[i], sample.buffer(i));
      if (sample[i].kind != Payload::Kind::bytes || std::ssize(sample[i].bytes) <= bytes_max) continue;
      refuse_sample(payload_fault(field, sample[i], limits_).value(), name(index));
    }
    labels_->note(facts_, index, sample);
  } catch (nb::python_error& raised) {
    if (facts_.size == kUnknownSize) throw_of_epoch(raised, name(index));
    const ErrorCode code = code_of(raised);
    throw SampleException(code, std::move(raised), name(index));
  }
}

}  // namespace headrace::python
