// The fields of a source's samples, and which of them a loader treats in a way of their own.
#pragma once

#include <headrace/source.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace headrace::detail {

struct SampleFields {
  explicit SampleFields(Schema of_source, std::int64_t its_classes = kUnknownClasses)
      : schema(std::move(of_source)),
        stored(stored_shape(schema)),
        classes(its_classes),
        image(schema.image()),
        label(schema.class_label()),
        are_image_and_labels(schema.is_image_and_labels()) {}

  Schema schema;
  ImageShape stored;  // Of the image.
  std::int64_t classes;
  std::optional<std::size_t> image;  // The first image: transforms make it. Further ones go as they are.
  std::optional<std::size_t> label;  // Its class.
  bool are_image_and_labels;         // These alone.
};

}  // namespace headrace::detail
