#include "data/loader/detail/batch_layout.h"

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace::detail {
namespace {

constexpr std::int64_t kAlignment = 64;

DType dtype_of(PixelType type) {
  return type == PixelType::f32 ? DType::f32 : type == PixelType::bf16 ? DType::bf16 : DType::u8;
}

// In C order. Of a shape without elements the products may overflow, and mean nothing.
std::vector<std::int64_t> strides_of(const Shape& shape) {
  std::vector<std::int64_t> strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis > 0; --axis) {
    strides[axis - 1] = stride;
    if (__builtin_mul_overflow(stride, shape[axis - 1], &stride)) stride = 0;
  }
  return strides;
}

std::vector<std::int64_t> strides_of(const ImagePlace& place) {
  const std::int64_t channels = place.shape.channels, height = place.shape.height, width = place.shape.width;
  const std::int64_t plane = height * width, sample = channels * plane;
  if (place.layout == PixelLayout::nhwc) return {sample, 1, width * channels, channels};
  return {sample, plane, width, 1};
}

BatchField batch_field_of(const FieldSpec& field, Shape shape, std::vector<std::int64_t> strides) {
  return {.name = field.name,
          .dtype = field.dtype,
          .shape = std::move(shape),
          .strides = std::move(strides),
          .bytes = {},
          .encoding = field.encoding};
}

std::int64_t bytes_of_sample(const FieldSpec& field) {
  if (const auto bytes = field.bytes()) return *bytes;
  fail(ErrorCode::out_of_memory, "data: field {}: {} is larger than any memory", field.name,
       array_text(field.dtype, field.shape));
}

// Whether the first axis alone differs from sample to sample.
bool differs_in_rows(const Shape& shape) {
  return shape[0] == kRagged && std::find(shape.begin() + 1, shape.end(), kRagged) == shape.end();
}

}  // namespace

// Places one behind the other.
class BatchLayout::Block {
 public:
  explicit Block(std::int64_t batch_size) : batch_size_(batch_size) {}

  // For `count` times `bytes`. nullopt: that is more than any memory.
  std::optional<std::size_t> add(std::int64_t count, std::int64_t bytes) {
    const std::int64_t at = end_;
    std::int64_t size = 0;
    const bool overflows = __builtin_mul_overflow(count, bytes, &size) ||
                           __builtin_add_overflow(size, kAlignment - 1, &size) ||
                           __builtin_add_overflow(end_, size / kAlignment * kAlignment, &end_);
    return overflows ? std::nullopt : std::optional{static_cast<std::size_t>(at)};
  }
  std::size_t of_field(const FieldSpec& field, std::int64_t count, std::int64_t bytes) {
    if (const auto at = add(count, bytes)) return *at;
    fail(ErrorCode::out_of_memory, "data: field {}: {} x {} bytes in a batch are more than any memory", field.name,
         count, bytes);
  }
  std::size_t of_present(const FieldSpec& field) { return field.optional ? of_field(field, batch_size_, 1) : kNowhere; }
  std::size_t end() const { return static_cast<std::size_t>(end_); }

 private:
  const std::int64_t batch_size_;
  std::int64_t end_ = 0;
};

BatchLayout::BatchLayout(const SampleFields& of_samples, const std::optional<ImagePlace>& image_place,
                         std::int64_t samples)
    : fields(of_samples), batch_size(samples) {
  const FieldSpec indices{.name = "sample indices"}, valid{.name = "valid"};
  Block block{batch_size};
  for (std::size_t i = 0; i < fields.schema.size(); ++i) {
    const FieldSpec& field = fields.schema[i];
    if (i == fields.image) {
      place_image(field, i, image_place.value(), block);
    } else if (field.is_ragged()) {
      place_ragged(field, i);
    } else {
      place_dense(field, i, block);
    }
  }
  indices_at = block.of_field(indices, batch_size, sizeof(std::int64_t));
  valid_at = block.of_field(valid, batch_size, 1);
  batch_fields.push_back(batch_field_of(valid, {batch_size}, {1}));
  for (Dense& place : dense) place.present_at = block.of_present(fields.schema[place.field]);
  for (Ragged& place : ragged) {
    const FieldSpec& field = fields.schema[place.field];
    const auto axes = static_cast<std::int64_t>(place.axes), number = static_cast<std::int64_t>(sizeof(std::int64_t));
    place.offsets_at = block.of_field(field, batch_size + 1, number);
    place.shapes_at = differs_in_rows(field.shape) ? kNowhere : block.of_field(field, batch_size, axes * number);
    place.present_at = block.of_present(field);
  }
  block_bytes = block.end();
}

void BatchLayout::place_image(const FieldSpec& field, std::size_t position, const ImagePlace& how, Block& block) {
  const auto [channels, height, width] = how.shape;
  const DType dtype = dtype_of(how.type);
  std::int64_t bytes = headrace::bytes_of(dtype);
  bool overflows = false;
  for (const int factor : {channels, height, width}) {
    overflows |= __builtin_mul_overflow(bytes, std::int64_t{factor}, &bytes);
  }
  const auto at = overflows ? std::nullopt : block.add(batch_size, bytes);
  if (!at) {
    fail(ErrorCode::out_of_memory, "data: a batch of {} x {} x {} x {} values is larger than any memory", batch_size,
         channels, height, width);
  }
  image = {position, *at, static_cast<std::size_t>(bytes), kNowhere};
  counted_bytes += bytes;
  batch_fields.push_back(batch_field_of(field, {batch_size, channels, height, width}, strides_of(how)));
  batch_fields.back().dtype = dtype;
}

void BatchLayout::place_dense(const FieldSpec& field, std::size_t position, Block& block) {
  const std::int64_t bytes = bytes_of_sample(field);
  dense.push_back({position, block.of_field(field, batch_size, bytes), static_cast<std::size_t>(bytes), kNowhere});
  if (position != fields.label) counted_bytes += bytes;
  Shape shape{batch_size};
  shape.insert(shape.end(), field.shape.begin(), field.shape.end());
  batch_fields.push_back(batch_field_of(field, shape, strides_of(shape)));
}

void BatchLayout::place_ragged(const FieldSpec& field, std::size_t position) {
  if (field.encoding == Encoding::image) {
    fail(ErrorCode::unsupported, "data: field {}: {} beside the image {}; wanted a fixed size, as one image is resized",
         field.name, array_text(field.dtype, field.shape), fields.schema[*fields.image].name);
  }
  FieldSpec element = field;
  element.shape = differs_in_rows(field.shape) ? Shape(field.shape.begin() + 1, field.shape.end()) : Shape{};
  const auto bytes = static_cast<std::size_t>(bytes_of_sample(element));
  ragged.push_back({position, bytes, field.shape.size(), kNowhere, kNowhere, kNowhere});
  Shape shape{0};
  shape.insert(shape.end(), element.shape.begin(), element.shape.end());
  batch_fields.push_back(batch_field_of(field, shape, strides_of(shape)));
}

}  // namespace headrace::detail
