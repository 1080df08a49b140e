#include <headrace/dtype.h>
#include <headrace/error.h>
#include <headrace/field.h>
#include <headrace/operation.h>
#include <headrace/option_fields.h>
#include <headrace/options/data.h>
#include <headrace/options/transforms.h>
#include <headrace/transform.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/options/contradictions.h"
#include "python/core/arrays.h"
#include "python/core/bindings.h"
#include "python/core/image_memory.h"
#include "python/core/keywords.h"
#include "python/core/transform_steps.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

nb::dict operation_table(const std::string& name, const nb::dict& parameters) {
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

// What no array of NumPy's holds is refused here, not when an image comes.
Transform checked(Transform transform) {
  ArrayMaker{}.require(transform.dtype(), "what the list of transforms ends in");
  return transform;
}

// A list of operations, of which torchvision's become ours, as a Loader takes it.
Transform transform_of(const nb::object& transforms, const std::optional<std::int64_t>& height,
                       const std::optional<std::int64_t>& width, std::int64_t channels, const nb::object& layout) {
  DataOptions options;
  nb::dict list, order;
  list["transforms"] = imported("headrace.transforms", "operations_of")(transforms, "transforms");
  order["layout"] = layout;
  set_keywords(fields_of(options), list);
  set_keywords(fields_of(options.transform), order);
  if (const std::string fault = transforms_contradiction(options, ""); !fault.empty()) {
    throw Error(ErrorCode::invalid_argument, fault);
  }
  const Schema images{{{.name = "image",
                        .shape = {height.value_or(kRagged), width.value_or(kRagged), channels},
                        .encoding = Encoding::image}}};
  return checked(Transform{images, options.transforms, options.transform.layout});
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

void write(const Transform& transform, const Payload& image, const std::optional<SampleKey>& key,
           std::span<std::byte> bytes) {
  const nb::gil_scoped_release released;
  if (key) {
    transform.apply(image, *key, bytes);
  } else {
    transform.apply(image, bytes);
  }
}

nb::object apply(const Transform& transform, const nb::object& image, const nb::object& out,
                 const std::optional<std::int64_t>& seed, const std::optional<std::int64_t>& epoch,
                 const std::optional<std::int64_t>& index) {
  const std::optional<SampleKey> key = key_of(seed, epoch, index);
  const ImageInput from{image};
  if (out.is_none()) {
    const auto memory = new_memory(transform);
    write(transform, from.payload(), key, {memory.get(), transform.image_bytes()});
    return image_over(memory, transform);
  }
  const ImageOutput to{out, transform, from};
  write(transform, from.payload(), key, to.bytes());
  return out;
}

// "<headrace.Transform Resize, CenterCrop -> uint8 (3, 224, 224)>"
std::string text_of_transform(const Transform& transform) {
  std::vector<std::string> operations;
  for (const TransformStep& step : transform.explain()) {
    operations.insert(operations.end(), step.operations.begin(), step.operations.end());
  }
  const Geometry size = transform.size();
  return fmt::format("<headrace.Transform {} -> {} ({}, {}, {})>", fmt::join(operations, ", "),
                     name_of(transform.dtype()), size.channels, size.height, size.width);
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

void register_transforms(nb::module_& module) {
  module.def("operation_table", &operation_table, nb::arg("name"), nb::arg("parameters"),
             "The table of an operation of that name in a list of transforms: `name` and every parameter, those given "
             "as they are understood, the others at their defaults.");
  nb::class_<Transform> bound(module, "Transform", nb::is_weak_referenceable(), kTransformText);
  bound
      .def(
          "__init__",
          [](Transform* self, const nb::object& transforms, const std::optional<std::int64_t>& height,
             const std::optional<std::int64_t>& width, std::int64_t channels, const nb::object& layout) {
            new (self) Transform(transform_of(transforms, height, width, channels, layout));
          },
          nb::arg("transforms").none(), nb::kw_only(), nb::arg("height") = nb::none(), nb::arg("width") = nb::none(),
          nb::arg("channels") = 3, nb::arg("layout").none() = "nchw")
      .def_static(
          "from_run", [](const std::filesystem::path& run) { return checked(Transform::from_run(run)); },
          nb::arg("run"), "Of the run of `headrace train` or `tune` whose folder this is, by its eval_transform.toml.")
      .def("apply", &apply, nb::arg("image").none(), nb::arg("out") = nb::none(), nb::kw_only(),
           nb::arg("seed") = nb::none(), nb::arg("epoch") = nb::none(), nb::arg("index") = nb::none(), kApplyText)
      .def(
          "__call__",
          [](const Transform& transform, const nb::object& image) {
            return apply(transform, image, nb::none(), {}, {}, {});
          },
          nb::arg("image").none(), "apply(image), for what calls its transforms.")
      .def(
          "explain", [](const Transform& transform) { return steps_of(transform.explain()); },
          "The operations in order, as Loader.explain()[\"transforms\"] tells them.")
      .def("__repr__", &text_of_transform);
  refuse_pickling(
      bound,
      "a headrace.Transform cannot be pickled or copied: it is compiled in this process. Make one where it is "
      "wanted, of the same list");
}

}  // namespace headrace::python
