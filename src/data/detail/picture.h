// One sample's way from its bytes to its place in a batch.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <optional>
#include <span>

#include "data/detail/pass.h"
#include "data/detail/workspace.h"
#include "store/ram_cache.h"

namespace headrace::detail {

// Decodes, crops, resizes, flips and normalises the pictures of one pass with one workspace.
class PictureMaker {
 public:
  // `cache` of decoded pictures, or null.
  PictureMaker(const Pass& pass, Workspace& workspace, RamCache* cache)
      : pass_(pass), workspace_(workspace), cache_(cache) {}

  // The picture as the cache holds it, as a sample of pixels.
  std::optional<Sample> find(std::int64_t index) const;

  // Offers a sample of pixels that was read to the cache, which must be there.
  void keep(const Sample& sample, std::int64_t index);

  // Whether the cache would keep it.
  bool has_room(const Sample& sample) const;

  // Writes the picture to `out`, in the pass' shape and form. The draws are those of sample `drawn_as`. Of pixels
  // without bytes, as Source::outline() tells of them, the rows that the crop needs are read. Throws Error when the
  // picture cannot be read or decoded; `out` is unfinished then. The bytes are the same with and without a cache.
  void make(const Sample& sample, std::int64_t index, std::int64_t drawn_as, std::span<std::byte> out);

  std::int64_t read_ns() const { return read_ns_; }  // So far.
  std::int64_t decode_ns() const { return decode_ns_; }

 private:
  struct Size {
    int height;
    int width;
  };

  std::size_t pixel_bytes(Size size) const;
  image::PixelRows cut(std::span<const std::uint8_t> rows, Size size, const image::Box& box) const;
  image::PixelRows pixels(const Sample& sample, std::int64_t index, const image::Box& box);
  image::PixelRows decode(const Sample& sample, std::int64_t index, Size size, const image::Box& box);
  void admit(std::int64_t index, Size size, std::span<const std::uint8_t> pixels);
  bool decode_whole(std::int64_t index, Size size);

  const Pass& pass_;
  Workspace& workspace_;
  RamCache* const cache_;
  std::int64_t read_ns_ = 0, decode_ns_ = 0;
};

}  // namespace headrace::detail
