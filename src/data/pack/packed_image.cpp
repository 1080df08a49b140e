#include "data/pack/detail/packed_image.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/fail.h"
#include "core/base/scratch.h"
#include "data/transform/crop.h"

namespace headrace::detail {
namespace {

std::size_t pixel_bytes(int height, int width, int channels) {
  return static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
}

void check_size(int height, int width, int channels) {
  if (pixel_bytes(height, width, channels) <= kPackSampleBytesMax) return;
  fail(ErrorCode::unsupported, "data: {} x {} x {} values do not go into a pack, which takes {} of an image", height,
       width, channels, kPackSampleBytesMax);
}

// Sizes are a pack's own to bound, pixels those of whoever loads it.
constexpr SampleLimits kNoLimits{.pixels = std::numeric_limits<std::int64_t>::max(),
                                 .bytes = std::numeric_limits<std::int64_t>::max()};

// Reads it, and refuses what its source's fields do not promise: the pack could not be opened.
void read_sound(const SampleReader& source, const Schema& schema, std::int64_t number, Sample& sample) {
  if (sample.size() != schema.size()) sample = Sample{schema.size()};
  sample.clear();
  source.read(number, sample);
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const auto fault = payload_fault(schema[i], sample[i], kNoLimits);
    if (fault) refuse_sample(*fault, source.name(number));
  }
}

}  // namespace

std::uint8_t row_form(PackForm form, ImageForm stored) noexcept {
  if (form == PackForm::stored) return static_cast<std::uint8_t>(stored);
  return static_cast<std::uint8_t>(form == PackForm::raw ? BlockForm::raw : BlockForm::lz4);
}

void ImagePacker::make(const SampleReader& source, std::int64_t number, PackedImage& packed) {
  const ImageShape stored = stored_shape(source.info().schema);
  read_sound(source, source.info().schema, number, packed.sample);
  const Payload& image = packed.sample.image();
  const std::int64_t label = packed.sample.label();
  if (label < 0 || label >= source.info().num_classes) {
    fail(ErrorCode::corrupt_data, "data: {}: label {}; wanted 0 to {}", source.name(number), label,
         source.info().num_classes - 1);
  }
  PackRow row{};
  row.label = static_cast<std::uint32_t>(label);
  row.channels = static_cast<std::uint8_t>(stored.channels);
  row.form = row_form(form_, image.form);
  if (form_ == PackForm::stored && image.form == ImageForm::pixels && stored.height == 0) {
    fail(ErrorCode::unsupported, "data: {}: pixels of a size of their own do not go into a pack as they are",
         source.name(number));
  }
  if (form_ == PackForm::stored) {
    row.height = static_cast<std::uint32_t>(image.height());
    row.width = static_cast<std::uint32_t>(image.width());
    packed.row = row;
    packed.bytes = image.bytes;
    return index(image, packed);
  }
  try {
    const Pixels pixels = resize(decode(image, stored.channels), stored.channels);
    check_size(pixels.height, pixels.width, stored.channels);
    row.height = static_cast<std::uint32_t>(pixels.height);
    row.width = static_cast<std::uint32_t>(pixels.width);
    packed.blocks.make(pixels.values, row, static_cast<std::uint32_t>(short_side_));
  } catch (const Error& error) {
    fail(error.code(), "data: {}: {}", source.name(number), error.what());
  }
  packed.row = row;
  packed.bytes = packed.blocks.bytes();
  packed.index = packed.blocks.index();
}

// The one that came with it, or one made now.
void ImagePacker::index(const Payload& image, PackedImage& packed) {
  const std::span<const std::uint8_t> own = image.entropy_index;
  packed.entropy.assign(own.begin(), own.end());
  const bool wanted = image.form == ImageForm::encoded && own.empty();
  if (wanted && indexer_.make(image.bytes, index_)) packed.entropy = codec::serialise(index_);
  packed.index = packed.entropy;
}

ImagePacker::Pixels ImagePacker::decode(const Payload& image, int channels) {
  if (image.form == ImageForm::pixels) return {image.height(), image.width(), image.bytes};
  const codec::ImageInfo info = decoder_.open(image.bytes, channels);
  if (short_side_ == 0) check_size(info.height, info.width, channels);
  const auto pixels = scratch_of(decoded_, pixel_bytes(info.height, info.width, channels));
  decoder_.decode({.y = 0, .x = 0, .height = info.height, .width = info.width}, pixels);
  return {info.height, info.width, pixels};
}

ImagePacker::Pixels ImagePacker::resize(const Pixels& pixels, int channels) {
  const int shorter = std::min(pixels.height, pixels.width);
  if (short_side_ == 0 || shorter <= short_side_) return pixels;
  const transform::ResizeAxis vertical = transform::resized_axis(pixels.height, shorter, short_side_);
  const transform::ResizeAxis horizontal = transform::resized_axis(pixels.width, shorter, short_side_);
  const auto out = scratch_of(resized_, pixel_bytes(vertical.resized, horizontal.resized, channels));
  resizer_.resize(pixels.values, vertical, horizontal, channels, out);
  return {vertical.resized, horizontal.resized, out};
}

void FieldsPacker::make(const SampleReader& source, std::int64_t number, PackedImage& packed) const {
  read_sound(source, schema_, number, packed.sample);
  const auto payloads = std::as_const(packed.sample).payloads();
  const std::int64_t size = format_.size(payloads);
  if (size > kPackSampleBytesMax) {
    fail(ErrorCode::unsupported, "data: {}: fields of {} bytes do not go into a pack, which takes {} of a sample",
         source.name(number), size, kPackSampleBytesMax);
  }
  const auto bytes = scratch_of(packed.fields, size);
  format_.write(payloads, std::as_writable_bytes(bytes));
  packed.row = {};
  packed.row.form = kPackFields;
  if (const auto label = schema_.class_label()) {
    const auto number_of_class = packed.sample[*label].number<std::int64_t>();
    if (number_of_class < 0 || number_of_class > std::numeric_limits<std::uint32_t>::max()) {
      fail(ErrorCode::unsupported, "data: {}: label {}; a pack takes 0 to 4,294,967,295", source.name(number),
           number_of_class);
    }
    packed.row.label = static_cast<std::uint32_t>(number_of_class);
  }
  packed.bytes = bytes;
  packed.index = {};
}

}  // namespace headrace::detail
