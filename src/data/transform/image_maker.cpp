#include "data/transform/image_maker.h"

#include <headrace/error.h>
#include <headrace/trace.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "core/base/scratch.h"
#include "data/source/sample_reader.h"

namespace headrace::detail {
namespace {

// What stands before the pixels of a cached image.
struct CachedHead {
  std::int32_t height;  // As it is stored.
  std::int32_t width;
  std::int32_t can_shrink;
};

// Pad, flip and normalise: what happens to an image that has the batch's size already. The draws depend on (seed,
// epoch, sample) alone: any thread gives the same image.
transform::NormalizeGeometry draw_geometry(const transform::FusedStage& stage, SampleRandom& random) {
  const auto& [height, width, channels] = stage.out;
  transform::NormalizeGeometry geometry{.height = height, .width = width, .channels = channels};
  if (!stage.draws_a_place()) return geometry;
  if (const transform::PadStage& pad = stage.pad; pad.is_any()) {
    geometry.offset_y = static_cast<int>(random.below(static_cast<std::uint32_t>(pad.top + pad.bottom + 1))) - pad.top;
    geometry.offset_x = static_cast<int>(random.below(static_cast<std::uint32_t>(pad.left + pad.right + 1))) - pad.left;
  }
  geometry.flip = random.uniform() < stage.flip_probability;
  return geometry;
}

// What of the image the crop reads.
codec::Box box_of(const transform::CropWindow& window) {
  const transform::Stretch rows = transform::needed(window.vertical), columns = transform::needed(window.horizontal);
  return {.y = rows.begin, .x = columns.begin, .height = rows.size, .width = columns.size};
}

}  // namespace

std::int64_t ImageMaker::key_of(std::int64_t index, int divisor) const {
  return epoch_.options.scale_decode ? 4 * index + std::countr_zero(static_cast<unsigned>(divisor)) : index;
}

std::optional<ImageMaker::Cached> ImageMaker::look_up(std::int64_t index, int divisor) const {
  const auto bytes = cache_->find(key_of(index, divisor));
  if (!bytes) return std::nullopt;
  CachedHead head;
  std::memcpy(&head, bytes->data(), sizeof head);
  return Cached{{{head.height, head.width}, head.can_shrink != 0, divisor}, bytes->subspan(sizeof head)};
}

// Only the image's own size tells which part of it is wanted, and so how small it may be: it is known at any scale.
std::optional<HeldImage> ImageMaker::find(std::int64_t index, std::int64_t drawn_as) const {
  std::optional<Cached> found = look_up(index, 1);
  if (scales()) {
    for (int divisor = 2; divisor <= 8 && !found; divisor *= 2) found = look_up(index, divisor);
    if (found && found->image.can_shrink) {
      SampleRandom random{epoch_.seed, epoch_.epoch, drawn_as};
      const int divisor = transform::divisor_for(crop_of(found->image, random));
      if (divisor != found->image.divisor) found = look_up(index, divisor);
    }
  }
  if (!found) return std::nullopt;
  const Size stored = found->image.stored;
  return HeldImage{Payload::of_pixels(found->pixels, stored.height, stored.width, stored_channels()),
                   found->image.divisor};
}

void ImageMaker::keep(const Payload& image, std::int64_t index) {
  if (has_room(image)) admit(index, {{image.height(), image.width()}}, image.bytes);
}

bool ImageMaker::has_room(const Payload& image) const {
  const std::size_t pixels = pixel_bytes({image.height(), image.width()});
  return cache_->has_room(static_cast<std::int64_t>(sizeof(CachedHead) + pixels));
}

transform::CropWindow ImageMaker::crop_of(const Image& image, SampleRandom& random) const {
  return transform::choose_crop(epoch_.stage.crop, image.stored.height, image.stored.width, random);
}

ImageMaker::Image ImageMaker::open(std::span<const std::uint8_t> bytes) {
  const codec::ImageInfo info = workspace_.decoder.open(bytes, stored_channels(), epoch_.options.max_pixels);
  return {{info.height, info.width}, workspace_.decoder.can_shrink()};
}

void ImageMaker::make(const Payload& held, int divisor, std::int64_t index, std::int64_t drawn_as,
                      std::span<std::byte> out) {
  SampleRandom random{epoch_.seed, epoch_.epoch, drawn_as};
  if (epoch_.stage.crop.kind == transform::CropKind::none) {
    const codec::Box whole{.y = 0, .x = 0, .height = held.height(), .width = held.width()};
    const auto stored = pixels(held, index, {held.height(), held.width()}, whole);
    return write(epoch_.stage, stored, {}, draw_geometry(epoch_.stage, random), out);
  }
  begin(held, divisor);
  const transform::CropWindow window = crop_of(image_, random);
  finish(held, index, window, draw_geometry(epoch_.stage, random), out);
}

Geometry ImageMaker::begin(const Payload& held, int divisor) {
  const bool encoded = held.form == ImageForm::encoded;
  begin_ns_ = encoded ? epoch_.clock() : 0;
  image_ = encoded ? open(held.bytes) : Image{{held.height(), held.width()}, false, divisor};
  return {image_.stored.height, image_.stored.width, stored_channels()};
}

void ImageMaker::finish(const Payload& held, std::int64_t index, transform::CropWindow window,
                        const transform::NormalizeGeometry& geometry, std::span<std::byte> out) {
  if (epoch_.stage.crop.kind == transform::CropKind::none) {
    const codec::Box all{.y = 0, .x = 0, .height = image_.stored.height, .width = image_.stored.width};
    return write(epoch_.stage, part_of(held, index, all), window, geometry, out);
  }
  if (scales() && image_.can_shrink) {
    image_.divisor = transform::divisor_for(window);
    workspace_.decoder.shrink(image_.divisor);
  }
  window.vertical.divisor = window.horizontal.divisor = image_.divisor;
  write(epoch_.stage, part_of(held, index, box_of(window)), window, geometry, out);
}

// Of the image that begin() opened.
transform::PixelRows ImageMaker::part_of(const Payload& held, std::int64_t index, const codec::Box& box) {
  if (held.form != ImageForm::encoded) return pixels(held, index, image_.size(), box);
  const transform::PixelRows part = decode(held, index, image_, box);
  decode_ns_ += epoch_.clock() - begin_ns_;
  decoded_bytes_ += static_cast<std::int64_t>(pixel_bytes({box.height, box.width}));
  return part;
}

ImageView ImageMaker::whole(const Payload& held, std::int64_t index) {
  const Size size = image_.size();
  const auto part = part_of(held, index, {.y = 0, .x = 0, .height = size.height, .width = size.width});
  const auto row_bytes = static_cast<std::ptrdiff_t>(pixel_bytes({1, size.width}));
  return {reinterpret_cast<const std::byte*>(part.values.data()),
          {{size.height, size.width, stored_channels()}, DType::u8},
          part.stride == 0 ? row_bytes : part.stride};
}

void ImageMaker::run(const transform::FusedStage& stage, const ImageView& image, const transform::CropWindow& window,
                     const transform::NormalizeGeometry& geometry, std::span<std::byte> out) {
  const std::span pixels{reinterpret_cast<const std::uint8_t*>(image.data), image.image.bytes()};
  if (stage.crop.kind == transform::CropKind::none) return write(stage, pixels, window, geometry, out);
  const codec::Box box = box_of(window);
  const auto& [height, width, channels] = image.image.size;
  const std::span rows = pixels.subspan(pixel_bytes({box.y, width}, channels));
  write(stage, cut(rows, {height, width}, box, channels), window, geometry, out);
}

// The passes that end in the batch. Loader::explain() tells what is counted here, and before that what writing_of()
// says.
void ImageMaker::write(const transform::FusedStage& stage, const transform::PixelRows& part,
                       const transform::CropWindow& window, const transform::NormalizeGeometry& geometry,
                       std::span<std::byte> out) {
  const bool moved = geometry.offset_y != 0 || geometry.offset_x != 0;
  const transform::PixelForm& form = stage.form;
  const auto& [height, width, channels] = stage.out;
  const auto values = static_cast<std::int64_t>(pixel_bytes({height, width}, channels));
  const std::int64_t written = std::ssize(out);
  if (geometry.flip) ++done_.flipped;
  switch (writing_of(stage, moved)) {
    case Writing::as_stored:
      transform::normalize(part.values, geometry, form, out);
      return note_written(SamplePass::write, values, written);
    case Writing::resized:
      workspace_.resizer.resize(part, window.vertical, window.horizontal, channels, geometry.flip, form, out);
      return note_written(SamplePass::resize_write, note_box(window, channels), written);
    case Writing::resized_then_placed: {
      const auto resized = scratch_of(workspace_.resized, static_cast<std::size_t>(values));
      workspace_.resizer.resize(part, window.vertical, window.horizontal, channels, resized);
      done_.add(SamplePass::resize, note_box(window, channels), values);
      transform::normalize(resized, geometry, form, out);
      return note_written(SamplePass::write, values, written);
    }
  }
}

void ImageMaker::note_written(SamplePass pass, std::int64_t in, std::int64_t out) {
  done_.add(writes_batch_ ? pass : SamplePass::between, in, out);
}

std::size_t ImageMaker::pixel_bytes(Size size, int channels) {
  return static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width) *
         static_cast<std::size_t>(channels);
}

std::int64_t ImageMaker::note_box(const transform::CropWindow& window, int channels) {
  const codec::Box box = box_of(window);
  const auto bytes = static_cast<std::int64_t>(pixel_bytes({box.height, box.width}, channels));
  done_.boxes += bytes;
  return bytes;
}

// The box of whole rows, of which `rows` holds those of the box.
transform::PixelRows ImageMaker::cut(std::span<const std::uint8_t> rows, Size size, const codec::Box& box,
                                     int channels) {
  const std::size_t stride = pixel_bytes({1, size.width}, channels), row = pixel_bytes({1, box.width}, channels);
  const std::size_t values = static_cast<std::size_t>(box.height - 1) * stride + row;
  return {rows.subspan(pixel_bytes({1, box.x}, channels), values), static_cast<std::ptrdiff_t>(stride)};
}

std::span<const std::uint8_t> ImageMaker::read_rows(std::int64_t index, const codec::Box& box) {
  Span span{kReadStorage, index};
  return epoch_.rows_of->read_rows(index, box.y, box.height, workspace_.rows);
}

// The box of an image of pixels, whose bytes are there or are read now.
transform::PixelRows ImageMaker::pixels(const Payload& held, std::int64_t index, Size size, const codec::Box& box) {
  if (!held.bytes.empty())
    return cut(held.bytes.subspan(pixel_bytes({box.y, size.width})), size, box, stored_channels());
  const std::int64_t begin_ns = epoch_.clock();
  const auto rows = read_rows(index, box);
  read_ns_ += epoch_.clock() - begin_ns;
  read_bytes_ += std::ssize(rows);
  done_.add(SamplePass::read_rows, std::ssize(rows), std::ssize(rows));
  done_.unread += static_cast<std::int64_t>(pixel_bytes(size)) - std::ssize(rows);
  return cut(rows, size, box, stored_channels());
}

// The box of the image that is open, and the whole image into the cache where it has room.
transform::PixelRows ImageMaker::decode(const Payload& held, std::int64_t index, const Image& image,
                                        const codec::Box& box) {
  const Size size = image.size();
  const std::size_t whole = pixel_bytes(size);
  if (cache_ != nullptr && cache_->has_room(static_cast<std::int64_t>(sizeof(CachedHead) + whole))) {
    if (decode_whole(index, image)) {
      note_decoded(SamplePass::decode_whole, held, size, whole);
      return cut(std::span{workspace_.decoded}.first(whole).subspan(pixel_bytes({box.y, size.width})), size, box,
                 stored_channels());
    }
  }
  const auto out = scratch_of(workspace_.decoded, pixel_bytes({box.height, box.width}));
  const codec::EntropyIndex* const entropy =
      epoch_.indices == nullptr ? nullptr : epoch_.indices->find(held, workspace_.entropy);
  if (entropy != nullptr) {
    const std::int64_t refused_before = workspace_.decoder.refused_indices();
    workspace_.decoder.decode(box, out, *entropy);
    const bool refused = workspace_.decoder.refused_indices() > refused_before;
    epoch_.indices->note_decoded(refused);
    note_decoded(refused ? SamplePass::decode_region : SamplePass::decode_indexed, held, size, out.size());
  } else {
    workspace_.decoder.decode(box, out);
    note_decoded(SamplePass::decode_region, held, size, out.size());
  }
  return out;
}

void ImageMaker::note_decoded(SamplePass pass, const Payload& held, Size size, std::size_t bytes) {
  done_.add(pass, std::ssize(held.bytes), static_cast<std::int64_t>(bytes));
  done_.whole += static_cast<std::int64_t>(pixel_bytes(size));
}

// False: the whole cannot be had. The box may be sound all the same, as where a file lacks its end, and then it is what
// a loader without a cache gives.
bool ImageMaker::decode_whole(std::int64_t index, const Image& image) {
  const Size size = image.size();
  std::span<std::uint8_t> pixels;
  try {
    pixels = scratch_of(workspace_.decoded, pixel_bytes(size));
    workspace_.decoder.decode({.y = 0, .x = 0, .height = size.height, .width = size.width}, pixels);
  } catch (const Error&) {
    return false;
  } catch (const std::bad_alloc&) {
    return false;
  }
  admit(index, image, pixels);
  return true;
}

void ImageMaker::admit(std::int64_t index, const Image& image, std::span<const std::uint8_t> pixels) {
  const CachedHead head{image.stored.height, image.stored.width, image.can_shrink ? 1 : 0};
  const std::span head_bytes{reinterpret_cast<const std::uint8_t*>(&head), sizeof head};
  const bool kept = cache_->admit(key_of(index, image.divisor), {head_bytes, pixels});
  if (kept) done_.add(SamplePass::keep, std::ssize(pixels), std::ssize(pixels));
}

}  // namespace headrace::detail
