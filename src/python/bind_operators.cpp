#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "core/base/fail.h"
#include "python/bindings.h"
#include "torch/tensor/thread_memory.h"
#include "torch/train/operator_spans.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

// What one thread begins and ends, though Python may drop the object on another.
template <class Observed>
class OfOneThread {
 public:
  ~OfOneThread() {
    // What LibTorch keeps of it in that thread cannot be taken out from here.
    if (observed_ != nullptr && thread_ != std::this_thread::get_id()) static_cast<void>(observed_.release());
  }

  void begin(std::unique_ptr<Observed> observed) {
    observed_ = std::move(observed);
    thread_ = std::this_thread::get_id();
  }
  std::unique_ptr<Observed> end(const char* name) {
    if (observed_ == nullptr) fail(ErrorCode::invalid_argument, "python: {}: wanted one that was started", name);
    if (thread_ != std::this_thread::get_id()) {
      fail(ErrorCode::invalid_argument, "python: {}: wanted the end on the thread that started it, found another one",
           name);
    }
    return std::move(observed_);
  }
  void check_idle(const char* name) const {
    if (observed_ != nullptr) fail(ErrorCode::invalid_argument, "python: {}: it is started already", name);
  }

 private:
  std::unique_ptr<Observed> observed_;
  std::thread::id thread_;
};

struct PythonOperatorSpans {
  OperatorSpansOptions options;
  OfOneThread<OperatorSpans> spans;
};

struct PythonMemoryScope {
  OfOneThread<MemoryScope> scope;
};

}  // namespace

void register_operators(py::module_& module) {
  py::class_<PythonOperatorSpans>(module, "OperatorSpans",
                                  "Between start() and stop() the operators of this thread are spans of the Trace "
                                  "that records.")
      .def(py::init([](bool record_shapes, bool profile_memory) {
             auto made = std::make_unique<PythonOperatorSpans>();
             made->options = {record_shapes, profile_memory};
             return made;
           }),
           py::arg("record_shapes") = false, py::arg("profile_memory") = false)
      .def("start",
           [](PythonOperatorSpans& self) {
             self.spans.check_idle("OperatorSpans");
             self.spans.begin(std::make_unique<OperatorSpans>(self.options));
           })
      .def("stop", [](PythonOperatorSpans& self) { self.spans.end("OperatorSpans").reset(); });
  py::class_<PythonMemoryScope>(module, "MemoryScope",
                                "What this thread allocates for tensors on the CPU between start() and stop(), which "
                                "returns the bytes kept and the most held.")
      .def(py::init<>())
      .def("start",
           [](PythonMemoryScope& self) {
             self.scope.check_idle("MemoryScope");
             self.scope.begin(std::make_unique<MemoryScope>());
           })
      .def("stop", [](PythonMemoryScope& self) {
        const std::unique_ptr<MemoryScope> ended = self.scope.end("MemoryScope");
        return std::tuple(ended->net_bytes(), ended->peak_bytes());
      });
}

}  // namespace headrace::python
