// A sample as a pack holds it: its bytes as they are with an entropy index, or decoded, resized and cut into blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/pack/pack_options.h"
#include "data/source/field_bytes.h"
#include "data/source/sample_reader.h"
#include "data/store/row_blocks.h"
#include "data/transform/resize.h"
#include "media/codec/decode.h"
#include "media/codec/entropy_index.h"

namespace headrace::detail {

// The buffers are used again.
struct PackedImage {
  PackRow row{};  // Without what PackFileWriter fills in.
  std::string name;
  std::span<const std::uint8_t> bytes, index;

  Sample sample;  // What they lie in, as below.
  std::vector<std::uint8_t> fields;
  std::vector<std::uint8_t> entropy;
  RowBlockWriter blocks;
};

// For one thread at a time; keeps its memory from image to image.
class ImagePacker {
 public:
  // short_side: that larger images are resized to, of a form other than stored; 0: none.
  ImagePacker(PackForm form, std::int64_t short_side) : form_(form), short_side_(short_side) {}

  // Throws Error that names the sample when it cannot be read or decoded, is not what its source's fields promise, has
  // a label outside the classes, or is too large for a pack (unsupported).
  void make(const SampleReader& source, std::int64_t index, PackedImage& packed);

 private:
  struct Pixels {
    int height, width;
    std::span<const std::uint8_t> values;
  };

  void index(const Payload& image, PackedImage& packed);
  Pixels decode(const Payload& image, int channels);
  Pixels resize(const Pixels& pixels, int channels);

  const PackForm form_;
  const std::int64_t short_side_;
  codec::EntropyIndexer indexer_;
  codec::EntropyIndex index_;
  codec::Decoder decoder_;
  transform::Resizer resizer_;
  std::vector<std::uint8_t> decoded_, resized_;
};

// The same of samples of any fields, which lie as FieldBytes has them. For one thread at a time.
class FieldsPacker {
 public:
  explicit FieldsPacker(const Schema& schema) : schema_(schema), format_(schema) {}

  // Throws Error that names the sample when it cannot be read, a field is not what the schema says, or all together are
  // too large for a pack (unsupported).
  void make(const SampleReader& source, std::int64_t index, PackedImage& packed) const;

 private:
  const Schema schema_;
  const FieldBytes format_;
};

// PackRow::form of what the form makes of such samples.
std::uint8_t row_form(PackForm form, ImageForm stored) noexcept;

}  // namespace headrace::detail
