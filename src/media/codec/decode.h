// JPEG and PNG files to pixels, as Pillow's Image.open(file).convert("RGB") or convert("L") gives them.
//
// Bit for bit, that is, and with its habits: a CMYK JPEG is taken for inverted, as Adobe writes it, marker or not; of
// 16 bits a channel the upper 8 are kept, but a 16-bit grey value above 255 is 255; transparency is dropped; the
// orientation that EXIF asks for is not applied.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "media/codec/entropy_index.h"

namespace headrace::codec {

struct ImageInfo {
  int height = 0;
  int width = 0;
  int channels = 0;  // Of what decode() writes.
};

// Pixels, inside the image.
struct Box {
  int y = 0;
  int x = 0;
  int height = 0;
  int width = 0;
};

constexpr int kSideMax = 65'535;
// Of an image, unless the caller says otherwise: as many as Pillow opens. All bytes of so many RGB pixels are half a
// GiB.
constexpr std::int64_t kPixelsMax = 178'956'970;

// Decoding row by row holds some rows only; progressive JPEG (6 bytes a pixel) and interlaced PNG (3) need room for the
// whole image, whatever the box. So fewer pixels are allowed for them.
constexpr std::int64_t buffered_pixels_max(std::int64_t pixels_max) {
  return pixels_max / 4;
}

// Keeps the library's state of the open image, and scratch between images. For one thread at a time.
class Decoder {
 public:
  Decoder();
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Reads the header of a JPEG or PNG, told by its first bytes, and forgets the image before. `bytes` must live until
  // the last decode() of it. `channels`: 3 for RGB, 1 for grey; grey becomes RGB by repeating it, RGB becomes grey by
  // the luma of ITU-R 601. An image of more than `pixels_max`, of a side beyond kSideMax, or of more pixels than its
  // file can hold is refused before memory is taken for it.
  //
  // Throws Error{corrupt_data} when that is no image or its header is damaged, Error{unsupported} for other formats,
  // JPEG that is lossless or of 12 bits, and too many pixels, Error{out_of_memory}, and Error{invalid_argument} for
  // another number of channels. No message names the sample: the caller knows it.
  ImageInfo open(std::span<const std::uint8_t> bytes, int channels, std::int64_t pixels_max = kPixelsMax);

  // Whether the open image is a JPEG, whose blocks can be transformed to fewer samples.
  bool can_shrink() const noexcept;
  // Makes it `divisor` (1, 2, 4, 8) times smaller along both axes, rounded up, until the next open(): each sample of a
  // component is the mean of divisor x divisor, as libjpeg scales. Returns its size. can_shrink(), and no box was
  // decoded yet.
  ImageInfo shrink(int divisor);

  // The HWC uint8 pixels of `box`, equal to that part of the whole image bit for bit. May be called again.
  //
  // Reads the file no further than to the box's last row; of a JPEG's rows only what the box needs is more than
  // entropy-decoded. Data that ends early or lost something on the way there is Error{corrupt_data}, and so is a file
  // without a proper end when the box reaches the last row of a PNG; `out` then holds anything.
  void decode(const Box& box, std::span<std::uint8_t> out);

  // With the open file's index: of a baseline JPEG nothing above the box and little beside it is read. An index that
  // does not fit is not used, nor one that leads to no image; both are counted.
  void decode(const Box& box, std::span<std::uint8_t> out, const EntropyIndex& index);
  std::int64_t refused_indices() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::codec
