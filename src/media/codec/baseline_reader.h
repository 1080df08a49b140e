// Baseline JPEG, decoded by our own code where that is sure of itself. Its pixels are libjpeg-turbo's, bit for bit: the
// format is ITU-T T.81's; the transforms, the upsampling and the colours follow
// libjpeg-turbo's algorithms (jpeg_kernels.h names them; licences: NOTICE).
//
// What it is not sure of, in the header or in the data, it leaves to JpegReader, which has the last word on what is a
// image, what is damaged, and how that is said.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "media/codec/decode.h"
#include "media/codec/detail/baseline_header.h"
#include "media/codec/detail/entropy_decoder.h"

namespace headrace::codec::detail {

class BaselineReader {
 public:
  // Nothing: not a file for this reader.
  std::optional<ImageInfo> open(std::span<const std::uint8_t> bytes, int channels);
  // As Decoder::shrink().
  ImageInfo shrink(int divisor);
  // Whether the index can be one of the open image.
  bool fits(const EntropyIndex& index) const noexcept;
  // False: the data is not as an encoder writes it, or the index is another file's; `out` holds anything. `index`,
  // which may be null, fits().
  bool decode(const Box& box, std::span<std::uint8_t> out, const EntropyIndex* index = nullptr);

 private:
  // Of one component, the samples of two rows of units: of the one that was decoded last, and of the one before. A
  // sample's row lies at its number modulo `ring`.
  struct Plane {
    int height = 0, width = 0;  // Of the whole image.
    int side = 8;               // Of a block's samples.
    int first = 0;              // Column at `samples`.
    int groups = 0;             // Of blocks that are transformed together.
    int ring = 0;
    std::ptrdiff_t stride = 0;
    std::vector<std::uint8_t> memory;
    std::vector<std::int16_t> coefficients;
    std::vector<std::uint8_t> varied;

    std::uint8_t* row(int y) noexcept;
  };

  bool decode_units(int unit_row, const std::array<std::array<BlockRow, 2>, 3>& rows, const EntropyIndex* index);
  void prepare(const Box& box);
  void prepare_plane(int component);
  std::array<std::array<BlockRow, 2>, 3> wanted_rows(int unit_row);
  void transform(int unit_row, const std::array<std::array<BlockRow, 2>, 3>& rows);
  void repeat_sides(int unit_row);
  void write_rows(const Box& box, int unit_row, std::uint8_t* out);
  void write_row(const Box& box, int y, std::uint8_t* out);
  const std::uint8_t* chroma(int component, const Box& box, int y);

  int unit_height() const noexcept { return header_.components[0].v * planes_[0].side; }
  int unit_width() const noexcept { return header_.components[0].h * planes_[0].side; }

  std::span<const std::uint8_t> bytes_;
  int channels_ = 0;
  BaselineHeader header_;
  int height_ = 0, width_ = 0;  // Shrunk.
  int h_ = 1, v_ = 1;           // Columns and rows of luma, shrunk, that a sample of chroma covers.
  EntropyDecoder entropy_;

  // Of the box that is being decoded: the units that its pixels need, and of chroma the rows.
  int first_unit_ = 0, last_unit_ = 0, first_unit_row_ = 0, last_unit_row_ = 0;
  int first_row_ = 0, last_row_ = 0;  // Of luma.
  int first_chroma_row_ = 0, last_chroma_row_ = 0;
  std::array<Plane, 3> planes_;
  std::array<std::vector<std::uint8_t>, 2> wide_;  // A row of chroma, as wide as luma.
  std::vector<std::uint16_t> sums_;
  std::vector<std::uint8_t> rgb_;  // A row whose luma is wanted.
};

}  // namespace headrace::codec::detail
