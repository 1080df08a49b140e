#include "data/detail/picture.h"

#include <headrace/error.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/clock.h"
#include "image/crop.h"

namespace headrace::detail {
namespace {

// What stands before the pixels of a cached picture.
struct CachedSize {
  std::int32_t height;
  std::int32_t width;
};

std::span<std::uint8_t> room(std::vector<std::uint8_t>& buffer, std::size_t size) {
  if (buffer.size() < size) buffer.resize(size);
  return std::span{buffer}.first(size);
}

// Pad, flip and normalise: what happens to a picture that has the batch's size already. The draws depend on (seed,
// epoch, sample) alone: any thread gives the same picture.
image::NormalizeGeometry draw_geometry(const Pass& pass, SampleRandom& random) {
  image::NormalizeGeometry geometry{
      .height = pass.shape.height, .width = pass.shape.width, .channels = pass.shape.channels};
  const TransformOptions& transform = pass.options.transform;
  if (!pass.augment || (transform.pad == 0 && transform.flip_probability == 0)) return geometry;
  if (transform.pad > 0) {
    const auto places = static_cast<std::uint32_t>(2 * transform.pad + 1);
    geometry.offset_y = static_cast<int>(random.below(places)) - static_cast<int>(transform.pad);
    geometry.offset_x = static_cast<int>(random.below(places)) - static_cast<int>(transform.pad);
  }
  geometry.flip = random.uniform() < transform.flip_probability;
  return geometry;
}

// What of the picture the crop reads.
image::Box box_of(const image::CropWindow& window) {
  const image::Stretch rows = image::needed(window.vertical), columns = image::needed(window.horizontal);
  return {.y = rows.begin, .x = columns.begin, .height = rows.size, .width = columns.size};
}

}  // namespace

std::optional<Sample> PictureMaker::find(std::int64_t index) const {
  const auto bytes = cache_->find(index);
  if (!bytes) return std::nullopt;
  CachedSize size;
  std::memcpy(&size, bytes->data(), sizeof size);
  return Sample{.bytes = bytes->subspan(sizeof size),
                .form = PictureForm::pixels,
                .height = size.height,
                .width = size.width,
                .channels = pass_.shape.channels,
                .label = pass_.source.label(index)};
}

void PictureMaker::keep(const Sample& sample, std::int64_t index) {
  if (has_room(sample)) admit(index, {sample.height, sample.width}, sample.bytes);
}

bool PictureMaker::has_room(const Sample& sample) const {
  return cache_->has_room(static_cast<std::int64_t>(sizeof(CachedSize) + pixel_bytes({sample.height, sample.width})));
}

void PictureMaker::make(const Sample& sample, std::int64_t index, std::int64_t drawn_as, std::span<std::byte> out) {
  SampleRandom random{pass_.seed, pass_.epoch, drawn_as};
  if (pass_.options.transform.size == 0) {
    const image::Box whole{.y = 0, .x = 0, .height = sample.height, .width = sample.width};
    image::normalize(pixels(sample, index, whole).values, draw_geometry(pass_, random), pass_.form, out);
    return;
  }
  const bool encoded = sample.form == PictureForm::encoded;
  const std::int64_t begin_ns = encoded ? monotonic_ns() : 0;
  Size size{sample.height, sample.width};
  if (encoded) {
    const image::PictureInfo info =
        workspace_.decoder.open(sample.bytes, pass_.shape.channels, pass_.options.max_pixels);
    size = {info.height, info.width};
  }
  const image::CropWindow window =
      image::choose_crop(pass_.options.transform, size.height, size.width, pass_.augment, random);
  const image::NormalizeGeometry geometry = draw_geometry(pass_, random);
  const image::Box box = box_of(window);
  const image::PixelRows part = encoded ? decode(sample, index, size, box) : pixels(sample, index, box);
  if (encoded) decode_ns_ += monotonic_ns() - begin_ns;
  const int channels = pass_.shape.channels;
  if (geometry.offset_y == 0 && geometry.offset_x == 0) {
    workspace_.resizer.resize(part, window.vertical, window.horizontal, channels, geometry.flip, pass_.form, out);
    return;
  }
  const auto resized = room(workspace_.resized, pixel_bytes({pass_.shape.height, pass_.shape.width}));
  workspace_.resizer.resize(part, window.vertical, window.horizontal, channels, resized);
  image::normalize(resized, geometry, pass_.form, out);
}

std::size_t PictureMaker::pixel_bytes(Size size) const {
  return static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width) *
         static_cast<std::size_t>(pass_.shape.channels);
}

// The box of whole rows, of which `rows` holds those of the box.
image::PixelRows PictureMaker::cut(std::span<const std::uint8_t> rows, Size size, const image::Box& box) const {
  const std::size_t stride = pixel_bytes({1, size.width}), row = pixel_bytes({1, box.width});
  const std::size_t values = static_cast<std::size_t>(box.height - 1) * stride + row;
  return {rows.subspan(pixel_bytes({1, box.x}), values), static_cast<std::ptrdiff_t>(stride)};
}

// The box of a sample of pixels, whose bytes are there or are read now.
image::PixelRows PictureMaker::pixels(const Sample& sample, std::int64_t index, const image::Box& box) {
  const Size size{sample.height, sample.width};
  if (!sample.bytes.empty()) return cut(sample.bytes.subspan(pixel_bytes({box.y, size.width})), size, box);
  const std::int64_t begin_ns = monotonic_ns();
  const auto rows = pass_.source.read_rows(index, box.y, box.height, workspace_.rows);
  read_ns_ += monotonic_ns() - begin_ns;
  return cut(rows, size, box);
}

// The box of the picture that is open, and the whole picture into the cache where it has room.
image::PixelRows PictureMaker::decode(const Sample& sample, std::int64_t index, Size size, const image::Box& box) {
  const std::size_t whole = pixel_bytes(size);
  if (cache_ != nullptr && cache_->has_room(static_cast<std::int64_t>(sizeof(CachedSize) + whole))) {
    if (decode_whole(index, size)) {
      return cut(std::span{workspace_.decoded}.first(whole).subspan(pixel_bytes({box.y, size.width})), size, box);
    }
  }
  const auto out = room(workspace_.decoded, pixel_bytes({box.height, box.width}));
  if (const image::EntropyIndex* entropy = pass_.indices.find(sample, workspace_.entropy)) {
    const std::int64_t refused_before = workspace_.decoder.refused_indices();
    workspace_.decoder.decode(box, out, *entropy);
    pass_.indices.note_decoded(workspace_.decoder.refused_indices() > refused_before);
  } else {
    workspace_.decoder.decode(box, out);
  }
  return out;
}

// False: the whole cannot be had. The box may be sound all the same, as where a file lacks its end, and then it is what
// a loader without a cache gives.
bool PictureMaker::decode_whole(std::int64_t index, Size size) {
  std::span<std::uint8_t> pixels;
  try {
    pixels = room(workspace_.decoded, pixel_bytes(size));
    workspace_.decoder.decode({.y = 0, .x = 0, .height = size.height, .width = size.width}, pixels);
  } catch (const Error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  admit(index, size, pixels);
  return true;
}

void PictureMaker::admit(std::int64_t index, Size size, std::span<const std::uint8_t> pixels) {
  const CachedSize stored{size.height, size.width};
  cache_->admit(index, {{reinterpret_cast<const std::uint8_t*>(&stored), sizeof stored}, pixels});
}

}  // namespace headrace::detail
