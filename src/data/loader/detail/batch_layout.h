// What all batches of a loader have alike: where each field of each sample lies.
#pragma once

#include <headrace/batch.h>
#include <headrace/loader.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "data/loader/detail/sample_fields.h"

namespace headrace::detail {

// Where the transforms write an image.
struct ImagePlace {
  ImageShape shape;
  PixelType type;
  PixelLayout layout;
};

// A batch has one block of memory: dense fields in the schema's order, the samples' indices, `valid`, then what the
// other fields need beside their values; each 64-byte aligned. Values of ragged fields lie elsewhere (RaggedFields),
// as only reading tells how many they are.
struct BatchLayout {
  static constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

  struct Dense {
    std::size_t field;         // Position in the schema.
    std::size_t at;            // In the block.
    std::size_t sample_bytes;  // One sample's.
    std::size_t present_at;    // A byte a sample; kNowhere: every sample has it.
  };
  struct Ragged {
    std::size_t field;
    std::size_t element_bytes;  // Of what offsets count: rows along the first axis, or elements where others differ.
    std::size_t axes;
    std::size_t offsets_at;  // batch_size + 1 int64.
    std::size_t shapes_at;   // batch_size x axes int64; kNowhere: the first axis alone differs.
    std::size_t present_at;
  };

  // `image`: of fields.image, where there is one. Error{out_of_memory}: a batch is larger than any memory;
  // Error{unsupported}: an image beyond the first whose size differs, which could be a file that nobody decodes.
  BatchLayout(const SampleFields& of_samples, const std::optional<ImagePlace>& image_place, std::int64_t samples);

  SampleFields fields;
  std::int64_t batch_size;
  std::optional<Dense> image;  // Written by the transforms,
  std::vector<Dense> dense;    // the others as they are.
  std::vector<Ragged> ragged;
  std::size_t indices_at = 0, valid_at = 0;
  std::size_t block_bytes = 0;
  std::int64_t counted_bytes = 0;  // Of a sample's dense fields, but for a class label: what statistics tell.
  // As a batch tells them, without memory: the schema's, then "valid".
  std::vector<BatchField> batch_fields;

 private:
  class Block;
  void place_image(const FieldSpec& field, std::size_t position, const ImagePlace& how, Block& block);
  void place_dense(const FieldSpec& field, std::size_t position, Block& block);
  void place_ragged(const FieldSpec& field, std::size_t position);
};

}  // namespace headrace::detail
