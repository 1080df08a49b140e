#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "core/base/fail.h"
#include "data/pack/pack_build.h"
#include "python/core/bindings.h"
#include "python/core/errors.h"
#include "python/core/python_source.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

constexpr const char* kPackText =
    R"(Writes the samples of an object of your own to a new pack, which Loader("pack:PATH") reads, and returns their number.

source has __len__ and __getitem__(index), and at least one sample; fields is a Loader's. A pack holds every field; images and
labels are packed as `headrace pack` packs them, and then the source tells its classes. It is one file, path, as split="train", "val"
or "test". What was killed is gone on with by the same call.)";

std::int64_t pack(const nb::object& source, const std::filesystem::path& path, const std::string& split,
                  const nb::object& fields) {
  if (truth_of(imported("headrace._stream", "is_stream")(source))) {
    fail(
        ErrorCode::invalid_argument,
        "source is a {}, an iterable data set; wanted an object with __len__ and __getitem__, as samples are packed by "
        "index",
        class_name(source));
  }
  check_source(source, "");
  const nb::object declared = imported("headrace._fields", "declared")(fields);
  const auto opened = std::make_shared<PythonSource>(source, declared, /*sizes_vary=*/false,
                                                     SampleLimits{.bytes = std::numeric_limits<std::int64_t>::max()});
  if (opened->size() == 0) {
    fail(ErrorCode::invalid_argument, "source is a {} without samples; wanted at least one to pack",
         class_name(source));
  }
  const Split as = split_named(split, "split is");
  const std::string name = text_of(imported("headrace._source", "name_of")(source));
  const nb::gil_scoped_release released;
  const auto go_on = [](std::int64_t, std::int64_t) {
    const nb::gil_scoped_acquire held;
    from_python([] {
      if (PyErr_CheckSignals() != 0) nb::raise_python_error();
    });
    return true;
  };
  return write_pack({.source = name, .out = path}, {{as, opened}}, go_on).value().samples;
}

}  // namespace

void register_pack(nb::module_& module) {
  module.def("pack", &pack, kPackText, nb::arg("source").none(), nb::arg("path"), nb::kw_only(),
             nb::arg("split") = "train", nb::arg("fields") = nb::none());
}

}  // namespace headrace::python
