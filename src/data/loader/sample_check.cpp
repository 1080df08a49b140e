#include "data/loader/detail/sample_check.h"

#include <algorithm>
#include <cstddef>

#include "core/base/fail.h"
#include "data/source/payload_check.h"
#include "media/codec/decode.h"

namespace headrace::detail {
namespace {

static_assert(SampleLimits{}.pixels == codec::kPixelsMax,
              "who decodes by default and who loads refuse the same images");

// Payload::height() and the like are of an image that fits: those of one that does not may be any.
void check_size(const Source& source, const ImageShape& stored, const Payload& image, std::int64_t index,
                const SampleLimits& limits) {
  const std::int64_t height = image.extents[0], width = image.extents[1], channels = image.extents[2];
  if (stored.height == 0) {  // Each image has a size of its own.
    const bool size_fits = std::min(height, width) >= 1 && std::max(height, width) <= codec::kSideMax;
    if (!size_fits || channels != stored.channels) {
      fail(ErrorCode::corrupt_data,
           "data: {}: {} x {} pixels of {} channels; wanted height and width of 1 to {} and {} channels",
           source.name(index), height, width, channels, codec::kSideMax, stored.channels);
    }
  } else if (height != stored.height || width != stored.width || channels != stored.channels) {
    fail(ErrorCode::corrupt_data,
         "data: {}: {} x {} pixels of {} channels; wanted {} x {} of {}, which its source tells of all: a "
         "batch holds images of one size, and data.transform.size gives them one, or of data.transforms a crop or a "
         "Resize "
         "to height and width",
         source.name(index), height, width, channels, stored.height, stored.width, stored.channels);
  }
  const std::int64_t pixels = height * width;
  if (pixels > limits.pixels) {
    fail(ErrorCode::unsupported, "data: {}: {} x {}: {} pixels; wanted at most {} (data.max_pixels)",
         source.name(index), height, width, pixels, limits.pixels);
  }
}

void check_bytes(const Source& source, const Payload& image, std::int64_t index) {
  const std::int64_t bytes = image.extents[0] * image.extents[1] * image.extents[2];
  if (std::ssize(image.bytes) != bytes) {
    fail(ErrorCode::corrupt_data, "data: {}: {} bytes of pixels; wanted {}", source.name(index), image.bytes.size(),
         bytes);
  }
}

void check_payload(const Source& source, const FieldSpec& field, const Payload& payload, std::int64_t index,
                   const SampleLimits& limits) {
  if (const auto fault = payload_fault(field, payload, limits)) refuse_sample(*fault, source.name(index));
}

void check_image(const Source& source, const ImageShape& stored, const Payload& image, std::int64_t index,
                 const SampleLimits& limits, bool whole) {
  const bool encoded = image.form == ImageForm::encoded;
  check_limit(source, std::ssize(image.bytes), index, limits);
  if (encoded && stored.height != 0) {
    fail(ErrorCode::internal, "data: {}: its source says {} x {} pixels and gives an encoded image", source.name(index),
         stored.height, stored.width);
  }
  if (!encoded) check_size(source, stored, image, index, limits);
  if (!encoded && whole) check_bytes(source, image, index);
}

}  // namespace

void refuse_size(const Source& source, std::int64_t bytes, std::int64_t index, const SampleLimits& limits) {
  fail(ErrorCode::unsupported, "data: {}: {} bytes; wanted at most {} (data.max_sample_bytes)", source.name(index),
       bytes, limits.bytes);
}

void check_sample(const Source& source, const SampleFields& fields, const Sample& sample, std::int64_t index,
                  const SampleLimits& limits, bool whole) {
  if (fields.image) {
    const Payload& image = sample[*fields.image];
    const bool is_image =
        image.kind == Payload::Kind::bytes && image.rank == (image.form == ImageForm::encoded ? 0 : 3);
    if (!is_image) check_payload(source, fields.schema[*fields.image], image, index, limits);
    check_image(source, fields.stored, image, index, limits, whole);
  }
  for (std::size_t i = 0; i < sample.size(); ++i) {
    if (i == fields.image) continue;
    const Payload& payload = sample[i];
    const bool is_number = payload.kind == Payload::Kind::value && payload.rank == 0 &&
                           payload.value_bytes == sizeof(std::int64_t) && i == fields.label;
    if (!is_number) check_payload(source, fields.schema[i], payload, index, limits);
  }
  if (!fields.label) return;
  const auto label = sample[*fields.label].number<std::int64_t>();
  if (label < 0 || label >= fields.classes) {
    fail(ErrorCode::corrupt_data, "data: {}: label {}; wanted 0 to {}", source.name(index), label, fields.classes - 1);
  }
}

}  // namespace headrace::detail
