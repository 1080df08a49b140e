#include <pybind11/pybind11.h>
#include <pybind11/stl/filesystem.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "core/base/fail.h"
#include "data/pack/pack_build.h"
#include "python/bindings.h"
#include "python/python_source.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

constexpr const char* kPackText =
    R"(Writes the samples of an object of your own to a new pack, which Loader("pack:PATH") reads, and returns their number.

source has __len__ and __getitem__(index), and at least one sample; fields is a Loader's. A pack holds every field; images and
labels are packed as `headrace pack` packs them, and then the source tells its classes. It is one file, path, as split="train", "val"
or "test". What was killed is gone on with by the same call.)";

std::int64_t pack(const py::object& source, const std::filesystem::path& path, const std::string& split,
                  const py::object& fields) {
  if (py::module_::import("headrace._stream").attr("is_stream")(source).cast<bool>()) {
    fail(
        ErrorCode::invalid_argument,
        "source is a {}, an iterable data set; wanted an object with __len__ and __getitem__, as samples are packed by "
        "index",
        Py_TYPE(source.ptr())->tp_name);
  }
  check_source(source, "");
  const py::object declared = py::module_::import("headrace._fields").attr("declared")(fields);
  const auto opened = std::make_shared<PythonSource>(source, declared, /*sizes_vary=*/false,
                                                     SampleLimits{.bytes = std::numeric_limits<std::int64_t>::max()});
  if (opened->size() == 0) {
    fail(ErrorCode::invalid_argument, "source is a {} without samples; wanted at least one to pack",
         Py_TYPE(source.ptr())->tp_name);
  }
  const Split as = split_named(split, "split is");
  const std::string name = py::module_::import("headrace._source").attr("name_of")(source).cast<std::string>();
  const py::gil_scoped_release released;
  const auto go_on = [](std::int64_t, std::int64_t) {
    const py::gil_scoped_acquire held;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    return true;
  };
  return write_pack({.source = name, .out = path}, {{as, opened}}, go_on).value().samples;
}

}  // namespace

void register_pack(py::module_& module) {
  module.def("pack", &pack, kPackText, py::arg("source"), py::arg("path"), py::kw_only(), py::arg("split") = "train",
             py::arg("fields") = py::none());
}

}  // namespace headrace::python
