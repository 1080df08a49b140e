// The fields of a source's samples, and which of them a loader treats in a way of their own.
#pragma once

#include <headrace/field.h>

#include <cstddef>
#include <optional>
#include <utility>

namespace headrace::detail {

struct SampleFields {
  explicit SampleFields(Schema of_source)
      : schema(std::move(of_source)),
        image(schema.image()),
        label(schema.class_label()),
        are_image_and_labels(schema.is_image_and_labels()) {}

  Schema schema;
  std::optional<std::size_t> image;  // The first image: transforms make it. Further ones go as they are.
  std::optional<std::size_t> label;  // Its class.
  bool are_image_and_labels;         // These alone.
};

}  // namespace headrace::detail
