#include <headrace/error.h>
#include <headrace/field.h>
#include <headrace/operation.h>
#include <headrace/option_fields.h>
#include <headrace/options/data.h>
#include <headrace/options/transforms.h>
#include <headrace/transform.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/base/fail.h"
#include "core/options/contradictions.h"
#include "python/bindings.h"
#include "python/image_memory.h"
#include "python/keywords.h"
#include "python/tensor_object.h"
#include "python/transform_steps.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

py::dict operation_table(const std::string& name, const py::dict& parameters) {
  TransformSpec operation;
  fields_of(operation).front().set(name);
  const std::string prefix = name + ".";
  set_keywords(fields_of(operation, prefix), parameters, prefix);
  if (const std::string fault = operation_contradiction(operation, prefix); !fault.empty()) {
    throw Error(ErrorCode::invalid_argument, fault);
  }
  static_cast<void>(make_operation(operation));  // Refuses what no kernel does.
  return keywords_of(fields_of(operation));
}

// A list of operations, of which torchvision's become ours, as a Loader takes it.
Transform transform_of(const py::object& transforms, const std::optional<std::int64_t>& height,
                       const std::optional<std::int64_t>& width, std::int64_t channels, const py::object& layout) {
  DataOptions options;
  py::dict list, order;
  list["transforms"] = py::module_::import("headrace.transforms").attr("operations_of")(transforms, "transforms");
  order["layout"] = layout;
  set_keywords(fields_of(options), list);
  set_keywords(fields_of(options.transform), order);
  if (const std::string fault = transforms_contradiction(options, ""); !fault.empty()) {
    throw Error(ErrorCode::invalid_argument, fault);
  }
  const Schema images{{{.name = "image",
                        .shape = {height.value_or(kRagged), width.value_or(kRagged), channels},
                        .encoding = Encoding::image}}};
  return Transform{images, options.transforms, options.transform.layout};
}

std::optional<SampleKey> key_of(const std::optional<std::int64_t>& seed, const std::optional<std::int64_t>& epoch,
                                const std::optional<std::int64_t>& index) {
  for (const auto& [name, value] : {std::pair{"seed", seed}, std::pair{"epoch", epoch}, std::pair{"index", index}}) {
    if (!value) continue;
    if (*value < 0) fail(ErrorCode::invalid_argument, "{} is {}; wanted at least 0", name, *value);
    if (!index) {
      fail(ErrorCode::invalid_argument, "{} is {}, and index is not given; wanted the sample's index, too", name,
           *value);
    }
  }
  if (!index) return std::nullopt;
  return SampleKey{.seed = static_cast<std::uint64_t>(seed.value_or(0)), .epoch = epoch.value_or(0), .index = *index};
}

py::object apply(const Transform& transform, const py::object& image, const py::object& out,
                 const std::optional<std::int64_t>& seed, const std::optional<std::int64_t>& epoch,
                 const std::optional<std::int64_t>& index) {
  const std::optional<SampleKey> key = key_of(seed, epoch, index);
  const ImageInput from{image};
  py::object made = out.is_none() ? object_of(new_image(transform)) : out;
  const ImageOutput to{made, transform, from};
  {
    const py::gil_scoped_release released;
    if (key) {
      transform.apply(from.payload(), *key, to.bytes());
    } else {
      transform.apply(from.payload(), to.bytes());
    }
  }
  return made;
}

constexpr const char* kTransformText =
    R"(A list of operations without a Loader: one image in, a tensor out, with the same bytes as a Loader's batch.

transforms is a list of headrace.transforms' operations, of dicts, or of torchvision.transforms.v2's own objects of these names, or a
Compose. Images have a size of their own unless height and width say that all are pixels of one size; channels is 1 for gray. The list must
leave images of one size. layout="nhwc" leaves them pixel by pixel in memory, as images of a channels-last batch lie.

Several threads may call one at once: apply() lets go of the interpreter's lock while it decodes and transforms, and each call
takes memory of its own for it, of which 64 MiB at most stay for the next, without what decoder and resizer keep.)";

constexpr const char* kApplyText =
    R"(The tensor (C, H, W) of the bytes of a JPEG or PNG file, or of uint8 pixels (H, W, C): an array, a tensor, an image of PIL's.
A file is decoded as the Loader decodes it.

out is written in place and returned instead: a tensor, such as batch[i], or a NumPy array, of that shape, of the type that the list
ends in and of its layout in memory. Where apply() raises, part of it may have been written. Two threads must not write one at once.

A list that draws at random needs the sample's index: it draws what a Loader of that seed does for that sample in that epoch. Seed and
epoch are 0 where they are not given.)";

}  // namespace

void register_transforms(py::module_& module) {
  module.def("operation_table", &operation_table, py::arg("name"), py::arg("parameters"),
             "The table of an operation of that name in a list of transforms: `name` and every parameter, those given "
             "as they are understood, the others at their defaults.");
  py::class_<Transform>(module, "Transform", kTransformText)
      .def(py::init(&transform_of), py::arg("transforms"), py::kw_only(), py::arg("height") = py::none(),
           py::arg("width") = py::none(), py::arg("channels") = 3, py::arg("layout") = "nchw")
      .def_static("from_run", &Transform::from_run, py::arg("run"),
                  "Of the run of `headrace train` or `tune` whose folder this is, by its eval_transform.toml.")
      .def("apply", &apply, py::arg("image"), py::arg("out") = py::none(), py::kw_only(), py::arg("seed") = py::none(),
           py::arg("epoch") = py::none(), py::arg("index") = py::none(), kApplyText)
      .def(
          "__call__",
          [](const Transform& transform, const py::object& image) {
            return apply(transform, image, py::none(), {}, {}, {});
          },
          py::arg("image"), "apply(image), for what calls its transforms.")
      .def(
          "explain", [](const Transform& transform) { return steps_of(transform.explain()); },
          "The operations in order, as Loader.explain()[\"transforms\"] tells them.");
}

}  // namespace headrace::python
