// One sample's way from its bytes to its place in a batch.
#pragma once

#include <headrace/source.h>

#include <cstdint>
#include <optional>
#include <span>

#include "data/store/ram_cache.h"
#include "data/transform/crop.h"
#include "data/transform/epoch_transform.h"
#include "data/transform/image_workspace.h"
#include "data/transform/sample_passes.h"

namespace headrace::detail {

// An image of the cache: pixels of one of height x width that was decoded `divisor` times smaller.
struct HeldImage {
  Payload image;
  int divisor = 1;
};

// Decodes, crops, resizes, flips and normalises the images of one epoch with one workspace.
class ImageMaker {
 public:
  // `cache` of decoded images, or null.
  ImageMaker(const EpochTransform& epoch, ImageWorkspace& workspace, RamCache* cache)
      : epoch_(epoch), workspace_(workspace), cache_(cache) {}

  // Entries of a cache of so many samples. An image that may be decoded smaller is kept in each size that was wanted.
  static std::int64_t cache_keys(const DataOptions& options, std::int64_t samples) {
    return options.scale_decode ? 4 * samples : samples;
  }

  // The image as the cache holds it, as pixels, in the size that make() wants with these draws.
  std::optional<HeldImage> find(std::int64_t index, std::int64_t drawn_as) const;

  // Offers an image of pixels that was read to the cache, which must be there.
  void keep(const Payload& image, std::int64_t index);

  // Whether the cache would keep it.
  bool has_room(const Payload& image) const;

  // Writes the image to `out`, in the epoch's shape and form. `divisor`: HeldImage's, 1 of one that was read. The draws
  // are those of sample `drawn_as`. Of pixels without bytes, as ImageRows::outline() tells of them, the rows that the
  // crop needs are read. Throws Error when the image cannot be read or decoded; `out` is unfinished then. The bytes are
  // the same with and without a cache.
  void make(const Payload& held, int divisor, std::int64_t index, std::int64_t drawn_as, std::span<std::byte> out);

  // make() in parts, for who draws by itself. begin() tells the size that the image has as it is stored; then it is
  // made as the window and the geometry say, or all of it is had as it is, until the workspace is used again.
  Geometry begin(const Payload& held, int divisor);
  void finish(const Payload& held, std::int64_t index, transform::CropWindow window,
              const transform::NormalizeGeometry& geometry, std::span<std::byte> out);
  ImageView whole(const Payload& held, std::int64_t index);
  // A pass over an image that other operations have left.
  void run(const transform::FusedStage& stage, const ImageView& image, const transform::CropWindow& window,
           const transform::NormalizeGeometry& geometry, std::span<std::byte> out);
  // Whether the passes end in the batch, as they do at first; others are told apart.
  void set_ends_in_batch(bool ends) { writes_batch_ = ends; }
  void note(SamplePass pass, std::int64_t in, std::int64_t out) { done_.add(pass, in, out); }

  // So far; read here is what make() read.
  std::int64_t read_ns() const { return read_ns_; }
  std::int64_t read_bytes() const { return read_bytes_; }
  std::int64_t decode_ns() const { return decode_ns_; }
  std::int64_t decoded_bytes() const { return decoded_bytes_; }
  const SampleTotals& done() const { return done_; }  // But for what is done with files before they are decoded.

 private:
  struct Size {
    int height = 0;
    int width = 0;
  };
  struct Image {
    Size stored{};
    bool can_shrink = false;
    int divisor = 1;

    // As it is decoded.
    Size size() const { return {(stored.height + divisor - 1) / divisor, (stored.width + divisor - 1) / divisor}; }
  };
  struct Cached {
    Image image;
    std::span<const std::uint8_t> pixels;
  };

  bool scales() const { return epoch_.options.scale_decode && epoch_.stage.crop.kind != transform::CropKind::none; }
  std::int64_t key_of(std::int64_t index, int divisor) const;
  std::optional<Cached> look_up(std::int64_t index, int divisor) const;
  transform::CropWindow crop_of(const Image& image, SampleRandom& random) const;
  Image open(std::span<const std::uint8_t> bytes);

  void write(const transform::FusedStage& stage, const transform::PixelRows& part, const transform::CropWindow& window,
             const transform::NormalizeGeometry& geometry, std::span<std::byte> out);

  transform::PixelRows part_of(const Payload& held, std::int64_t index, const codec::Box& box);
  void note_written(SamplePass pass, std::int64_t in, std::int64_t out);
  // Operations may leave images with another number.
  int stored_channels() const { return epoch_.stage.out.channels; }
  std::size_t pixel_bytes(Size size) const { return pixel_bytes(size, stored_channels()); }
  static std::size_t pixel_bytes(Size size, int channels);
  std::int64_t note_box(const transform::CropWindow& window, int channels);  // Returns the bytes that the crop reads.
  static transform::PixelRows cut(std::span<const std::uint8_t> rows, Size size, const codec::Box& box, int channels);
  std::span<const std::uint8_t> read_rows(std::int64_t index, const codec::Box& box);
  transform::PixelRows pixels(const Payload& held, std::int64_t index, Size size, const codec::Box& box);
  transform::PixelRows decode(const Payload& held, std::int64_t index, const Image& image, const codec::Box& box);
  void admit(std::int64_t index, const Image& image, std::span<const std::uint8_t> pixels);
  bool decode_whole(std::int64_t index, const Image& image);
  void note_decoded(SamplePass pass, const Payload& held, Size size, std::size_t bytes);

  const EpochTransform& epoch_;
  ImageWorkspace& workspace_;
  RamCache* const cache_;
  Image image_{};              // Of begin().
  std::int64_t begin_ns_ = 0;  // Likewise.
  bool writes_batch_ = true;
  std::int64_t read_ns_ = 0, decode_ns_ = 0;
  std::int64_t read_bytes_ = 0, decoded_bytes_ = 0;
  SampleTotals done_;
};

}  // namespace headrace::detail
