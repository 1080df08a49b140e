#include "python/python_source.h"

#include <pybind11/stl.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/fail.h"

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

ErrorCode code_of(const py::error_already_set& raised) {
  return raised.matches(PyExc_Exception) ? ErrorCode::corrupt_data : ErrorCode::cancelled;
}

SourceFacts facts_of(const py::object& reader, const std::string& name, bool sizes_vary) {
  const auto number = [&reader](const char* attribute) { return reader.attr(attribute).cast<std::int64_t>(); };
  const auto side = [&](const char* attribute) { return sizes_vary ? 0 : number(attribute); };
  SourceFacts facts{.name = name,
                    .size = number("size"),
                    .classes = number("classes"),
                    .schema = schema_of_images(name, side("height"), side("width"), number("channels")),
                    .labels = {}};
  if (facts.classes == -1) facts.classes = SourceFacts::kUnknownClasses;
  const py::object labels = reader.attr("labels");
  if (!labels.is_none()) facts.labels = labels.cast<std::vector<std::int64_t>>();
  check(facts);
  return facts;
}

}  // namespace

SampleException::SampleException(py::error_already_set raised, const std::string& sample)
    : Error(code_of(raised), fmt::format("data: {}: {}", sample, raised.what())),
      raised_(std::move(raised)),
      sample_(sample) {}

void SampleException::restore() const {
  py::object value = raised_.value();
  if (py::hasattr(value, "add_note")) value.attr("add_note")(fmt::format("headrace: raised by sample {}", sample_));
  py::object type = raised_.type(), trace = raised_.trace();
  PyErr_Restore(type.release().ptr(), value.release().ptr(), trace.release().ptr());
}

PythonSource::PythonSource(const py::object& source, bool sizes_vary) {
  const py::object reader = py::module_::import("headrace.worker").attr("SourceReader")(source);
  const py::object name = py::module_::import("headrace._source").attr("name_of")(source);
  facts_ = facts_of(reader, name.cast<std::string>(), sizes_vary);
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
    const auto number = [&given](std::size_t place) { return given[place].cast<std::int64_t>(); };
    const py::buffer_info bytes = py::buffer(given[0]).request();
    const auto size = static_cast<std::size_t>(bytes.size * bytes.itemsize);
    std::vector<std::uint8_t>& buffer = sample.buffer(0);
    if (buffer.size() < size) buffer.resize(size);
    std::memcpy(buffer.data(), bytes.ptr, size);
    const std::int64_t label = number(5);
    labels_->note(facts_, index, label);
    const auto copy = std::span{buffer}.first(size);
    const bool encoded = number(1) != 0;
    if (encoded) {
      sample.image().set_file(copy);
    } else {
      sample.image().set_pixels(copy, number(2), number(3), number(4));
    }
    sample.set_label(label);
  } catch (py::error_already_set& raised) {
    throw SampleException(std::move(raised), sample_name(index));
  }
}

}  // namespace headrace::python
