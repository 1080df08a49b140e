#include "data/loader/detail/sample_check.h"

#include <algorithm>
#include <cstddef>

#include "core/base/fail.h"
#include "media/codec/decode.h"

namespace headrace::detail {
namespace {

static_assert(SampleLimits{}.pixels == codec::kPixelsMax,
              "who decodes by default and who loads refuse the same images");

void check_sides(const Source& source, const Sample& sample, std::int64_t index, const SampleLimits& limits) {
  if (source.height() == 0) {  // Each image has a size of its own.
    const bool sides_fit =
        std::min(sample.height, sample.width) >= 1 && std::max(sample.height, sample.width) <= codec::kSideMax;
    if (!sides_fit || sample.channels != source.channels()) {
      fail(ErrorCode::corrupt_data, "data: {}: {} x {} pixels of {} channels; wanted sides of 1 to {} and {} channels",
           source.sample_name(index), sample.height, sample.width, sample.channels, codec::kSideMax, source.channels());
    }
  } else if (sample.height != source.height() || sample.width != source.width() ||
             sample.channels != source.channels()) {
    fail(ErrorCode::corrupt_data,
         "data: {}: {} x {} pixels of {} channels; wanted {} x {} of {}, which its source tells of all: a "
         "batch holds images of one size, and data.transform.size gives them one",
         source.sample_name(index), sample.height, sample.width, sample.channels, source.height(), source.width(),
         source.channels());
  }
  const std::int64_t pixels = std::int64_t{sample.height} * sample.width;
  if (pixels > limits.pixels) {
    fail(ErrorCode::unsupported, "data: {}: {} x {}: {} pixels; wanted at most {} (data.max_pixels)",
         source.sample_name(index), sample.height, sample.width, pixels, limits.pixels);
  }
}

void check_bytes(const Source& source, const Sample& sample, std::int64_t index) {
  const auto bytes = static_cast<std::size_t>(sample.height) * static_cast<std::size_t>(sample.width) *
                     static_cast<std::size_t>(sample.channels);
  if (sample.bytes.size() != bytes) {
    fail(ErrorCode::corrupt_data, "data: {}: {} bytes of pixels; wanted {}", source.sample_name(index),
         sample.bytes.size(), bytes);
  }
}

}  // namespace

void check_limit(const Source& source, std::int64_t bytes, std::int64_t index, const SampleLimits& limits) {
  if (bytes <= limits.bytes) return;
  fail(ErrorCode::unsupported, "data: {}: {} bytes; wanted at most {} (data.max_sample_bytes)",
       source.sample_name(index), bytes, limits.bytes);
}

void check_sample(const Source& source, const Sample& sample, std::int64_t index, const SampleLimits& limits,
                  bool whole) {
  check_limit(source, std::ssize(sample.bytes), index, limits);
  const bool encoded = sample.form == ImageForm::encoded;
  if (encoded && source.height() != 0) {
    fail(ErrorCode::internal, "data: {}: its source says {} x {} pixels and gives an encoded image",
         source.sample_name(index), source.height(), source.width());
  }
  if (!encoded) check_sides(source, sample, index, limits);
  if (!encoded && whole) check_bytes(source, sample, index);
  if (sample.label < 0 || sample.label >= source.num_classes()) {
    fail(ErrorCode::corrupt_data, "data: {}: label {}; wanted 0 to {}", source.sample_name(index), sample.label,
         source.num_classes() - 1);
  }
}

}  // namespace headrace::detail
