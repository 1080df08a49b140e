#include "media/codec/baseline_reader.h"

#include <algorithm>
#include <cstring>

#include "core/base/scratch.h"
#include "media/codec/detail/color.h"
#include "media/codec/jpeg_kernels.h"

namespace headrace::codec::detail {
namespace {

constexpr int kMargin = static_cast<int>(jpeg_passes::kPadding);

// Equal samples: the transform of a block that has a mean only.
template <int kSide>
void fill(std::int16_t mean, std::uint8_t* out, std::ptrdiff_t stride) {
  const auto value = static_cast<unsigned char>(std::clamp(((mean + 4) >> 3) + 128, 0, 255));
  for (int row = 0; row < kSide; ++row) std::memset(out + row * stride, value, kSide);
}

using Transform = decltype(jpeg_passes::Kernels::inverse_transform);

// A row of blocks to kSide rows of samples. Null: of all of them nothing but the means is wanted.
template <int kSide>
void transform_row(Transform transform, const BlockRow& row, int groups, int together, std::uint8_t* out,
                   std::ptrdiff_t stride) {
  std::int16_t* coefficients = row.coefficients;
  for (int group = 0; group < groups; ++group, out += together * kSide, coefficients += together * 64) {
    const bool varied = row.varied[group] != 0;
    row.varied[group] = 0;
    if (varied && transform != nullptr) {
      transform(coefficients, out, stride);
      continue;
    }
    for (int block = 0; block < together; ++block) {
      fill<kSide>(coefficients[block * 8], out + block * kSide, stride);
      coefficients[block * 8] = 0;
    }
    if (varied) std::fill_n(coefficients, together * 64, std::int16_t{0});
  }
}

void transform_row(int side, const BlockRow& row, int groups, std::uint8_t* out, std::ptrdiff_t stride) {
  const jpeg_passes::Kernels& kernels = jpeg_passes::kernels();
  switch (side) {
    case 8:
      return transform_row<8>(kernels.inverse_transform, row, groups, kernels.together, out, stride);
    case 4:
      return transform_row<4>(kernels.inverse_transform_to_4, row, groups, kernels.together, out, stride);
    case 2:
      return transform_row<2>(kernels.inverse_transform_to_2, row, groups, kernels.together, out, stride);
    default:
      return transform_row<1>(nullptr, row, groups, kernels.together, out, stride);
  }
}

int divided(int length, int divisor) {
  return (length + divisor - 1) / divisor;
}

}  // namespace

std::uint8_t* BaselineReader::Plane::row(int y) noexcept {
  return memory.data() + (y % ring) * stride + kMargin;
}

std::optional<ImageInfo> BaselineReader::open(std::span<const std::uint8_t> bytes, int channels) {
  const auto header = read_baseline_header(bytes);
  if (!header) return std::nullopt;
  header_ = *header;
  bytes_ = bytes;
  channels_ = channels;
  return shrink(1);
}

// As libjpeg: chroma of half the size is shrunk that much less before any of it is interpolated.
ImageInfo BaselineReader::shrink(int divisor) {
  const int side = 8 / divisor, h = header_.components[0].h, v = header_.components[0].v;
  int chroma_side = side;
  while (chroma_side < 8 && h * side % (2 * chroma_side) == 0 && v * side % (2 * chroma_side) == 0) chroma_side *= 2;
  height_ = divided(header_.height, divisor);
  width_ = divided(header_.width, divisor);
  h_ = h * side / chroma_side;
  v_ = v * side / chroma_side;
  planes_[0].side = side;
  planes_[1].side = planes_[2].side = chroma_side;
  return {height_, width_, channels_};
}

// Chroma of half the size is interpolated between the two nearest samples: one more on each side of the box.
void BaselineReader::prepare(const Box& box) {
  const int last_column = box.x + box.width - 1, chroma_side = planes_[1].side;
  first_row_ = box.y;
  last_row_ = box.y + box.height - 1;
  first_chroma_row_ = v_ == 1 ? first_row_ : std::max((first_row_ - 1) / 2, 0);
  last_chroma_row_ = v_ == 1 ? last_row_ : std::min((last_row_ + 1) / 2, divided(height_, v_) - 1);
  const int first_chroma = h_ == 1 ? box.x : std::max((box.x - 1) / 2, 0);
  const int last_chroma = h_ == 1 ? last_column : std::min((last_column + 1) / 2, divided(width_, h_) - 1);
  first_unit_ = std::min(box.x / unit_width(), first_chroma / chroma_side);
  last_unit_ = std::max(last_column / unit_width(), last_chroma / chroma_side);
  first_unit_row_ = std::min(first_row_ / unit_height(), first_chroma_row_ / chroma_side);
  last_unit_row_ = std::max(last_row_ / unit_height(), last_chroma_row_ / chroma_side);
  for (int c = 0; c < header_.component_count; ++c) prepare_plane(c);
  const std::ptrdiff_t room = box.width + 2 + 2 * kMargin;
  for (auto& row : wide_) scratch_of(row, room);
  scratch_of(sums_, room);
  if (channels_ == 1) scratch_of(rgb_, 3 * room);
}

void BaselineReader::prepare_plane(int component) {
  const BaselineComponent& form = header_.components[static_cast<std::size_t>(component)];
  Plane& plane = planes_[static_cast<std::size_t>(component)];
  const int together = jpeg_passes::kernels().together;
  plane.height = component == 0 ? height_ : divided(height_, v_);
  plane.width = component == 0 ? width_ : divided(width_, h_);
  plane.first = first_unit_ * form.h * plane.side;
  plane.groups = ((last_unit_ - first_unit_ + 1) * form.h + together - 1) / together;
  plane.ring = 2 * form.v * plane.side;
  plane.stride = plane.groups * together * plane.side + 2 * kMargin;
  scratch_of(plane.memory, plane.ring * plane.stride);
  scratch_of(plane.coefficients, std::ptrdiff_t{plane.groups} * together * 64 * form.v);
  scratch_of(plane.varied, plane.groups * form.v);
}

std::array<std::array<BlockRow, 2>, 3> BaselineReader::wanted_rows(int unit_row) {
  std::array<std::array<BlockRow, 2>, 3> rows;
  const int together = jpeg_passes::kernels().together;
  for (int c = 0; c < header_.component_count; ++c) {
    Plane& plane = planes_[static_cast<std::size_t>(c)];
    const int v = header_.components[static_cast<std::size_t>(c)].v;
    for (int i = 0; i < v; ++i) {
      const int first = (unit_row * v + i) * plane.side, last = first + plane.side - 1;
      if (first > (c == 0 ? last_row_ : last_chroma_row_) || last < (c == 0 ? first_row_ : first_chroma_row_)) continue;
      rows[static_cast<std::size_t>(c)][static_cast<std::size_t>(i)] = {
          plane.coefficients.data() + std::ptrdiff_t{i} * plane.groups * together * 64,
          plane.varied.data() + std::ptrdiff_t{i} * plane.groups};
    }
  }
  return rows;
}

void BaselineReader::transform(int unit_row, const std::array<std::array<BlockRow, 2>, 3>& rows) {
  for (int c = 0; c < header_.component_count; ++c) {
    Plane& plane = planes_[static_cast<std::size_t>(c)];
    const int v = header_.components[static_cast<std::size_t>(c)].v;
    for (int i = 0; i < v; ++i) {
      const BlockRow& row = rows[static_cast<std::size_t>(c)][static_cast<std::size_t>(i)];
      if (row.coefficients == nullptr) continue;
      transform_row(plane.side, row, plane.groups, plane.row((unit_row * v + i) * plane.side), plane.stride);
    }
  }
}

// At the sides of the image chroma is its own neighbour.
void BaselineReader::repeat_sides(int unit_row) {
  if (header_.component_count == 1 || h_ == 1) return;
  for (std::size_t c = 1; c < 3; ++c) {
    Plane& plane = planes_[c];
    const int behind = plane.width - plane.first;
    const bool right = (last_unit_ + 1) * plane.side >= plane.width;
    for (int y = unit_row * plane.side; y < (unit_row + 1) * plane.side; ++y) {
      std::uint8_t* row = plane.row(y);
      row[-1] = row[0];  // What is left of other columns is not asked for.
      if (right) row[behind] = row[behind - 1];
    }
  }
}

// The box's columns of a chroma component, as many as luma has.
const std::uint8_t* BaselineReader::chroma(int component, const Box& box, int y) {
  const jpeg_passes::Kernels& kernels = jpeg_passes::kernels();
  Plane& plane = planes_[static_cast<std::size_t>(component)];
  const int first = box.x / h_, count = (box.x + box.width - 1) / h_ - first + 1, skipped = box.x - first * h_;
  const std::uint8_t* near = plane.row(y / v_) + (first - plane.first);
  std::uint8_t* wide = wide_[static_cast<std::size_t>(component - 1)].data();
  if (v_ == 1) {
    if (h_ == 1) return near;
    kernels.widen(near, count, wide);
    return wide + skipped;
  }
  const int other = y % 2 == 0 ? std::max(y / 2 - 1, 0) : std::min(y / 2 + 1, plane.height - 1);
  const std::uint8_t* far = plane.row(other) + (first - plane.first);
  if (h_ == 1) {
    kernels.blend(near, far, 1 + y % 2, count, wide);
    return wide;
  }
  kernels.widen_between(near, far, count, sums_.data(), wide);
  return wide + skipped;
}

void BaselineReader::write_row(const Box& box, int y, std::uint8_t* out) {
  const std::uint8_t* luma_row = planes_[0].row(y) + (box.x - planes_[0].first);
  if (header_.component_count == 1) {
    if (channels_ == 1) {
      std::memcpy(out, luma_row, static_cast<std::size_t>(box.width));
    } else {
      for (int x = 0; x < box.width; ++x) std::memset(out + 3 * x, luma_row[x], 3);
    }
    return;
  }
  std::uint8_t* rgb = channels_ == 1 ? rgb_.data() : out;
  const std::uint8_t* blue = chroma(1, box, y);
  const std::uint8_t* red = chroma(2, box, y);
  jpeg_passes::kernels().rgb(luma_row, blue, red, box.width, rgb);
  if (channels_ == 1) {
    for (int x = 0; x < box.width; ++x) out[x] = luma(rgb + 3 * x);
  }
}

// What can be written once that row of units is there: of rows between two of chroma the last waits for the next.
void BaselineReader::write_rows(const Box& box, int unit_row, std::uint8_t* out) {
  const int height = unit_height();
  const int waits = header_.component_count == 3 && v_ == 2 ? 1 : 0;
  const int begin = std::max(unit_row * height - waits, box.y);
  const int end =
      unit_row == last_unit_row_ ? box.y + box.height : std::min((unit_row + 1) * height - waits, box.y + box.height);
  const std::ptrdiff_t stride = std::ptrdiff_t{box.width} * channels_;
  for (int y = begin; y < end; ++y) write_row(box, y, out + (y - box.y) * stride);
}

bool BaselineReader::fits(const EntropyIndex& index) const noexcept {
  return index.file_size == bytes_.size() && index.components == header_.component_count &&
         index.unit_rows == header_.unit_rows() && index.units_a_row == header_.units_a_row() &&
         index.positions.size() ==
             static_cast<std::size_t>(index.unit_rows) * static_cast<std::size_t>(index.positions_a_row());
}

// The units of a row that the box needs. Without an index those beside them are read too.
bool BaselineReader::decode_units(int unit_row, const std::array<std::array<BlockRow, 2>, 3>& rows,
                                  const EntropyIndex* index) {
  const int units = header_.units_a_row();
  if (index != nullptr) {
    const int from = first_unit_ / EntropyIndex::kUnitsApart * EntropyIndex::kUnitsApart;
    entropy_.move_to(index->before(unit_row, first_unit_), std::int64_t{unit_row} * units + from);
    entropy_.skip(first_unit_ - from);
  } else {
    entropy_.skip(first_unit_);
  }
  entropy_.decode(last_unit_ - first_unit_ + 1, rows);
  if (index == nullptr && unit_row < last_unit_row_) entropy_.skip(units - last_unit_ - 1);
  if (entropy_.ok()) return true;
  for (Plane& plane : planes_) {  // As the next image expects them.
    std::fill(plane.coefficients.begin(), plane.coefficients.end(), std::int16_t{0});
    std::fill(plane.varied.begin(), plane.varied.end(), std::uint8_t{0});
  }
  return false;
}

bool BaselineReader::decode(const Box& box, std::span<std::uint8_t> out, const EntropyIndex* index) {
  // Of so few samples libjpeg interpolates none.
  const bool interpolates = header_.component_count == 3 && (h_ == 2 || v_ == 2);
  if (interpolates && (planes_[0].side == 1 || (h_ == 2 && width_ <= 4))) return false;
  if (!entropy_.begin(bytes_, header_, jpeg_passes::kernels().together)) return false;
  prepare(box);
  for (int unit_row = 0; unit_row < first_unit_row_ && index == nullptr; ++unit_row) {
    entropy_.skip(header_.units_a_row());
    if (!entropy_.ok()) return false;
  }
  for (int unit_row = first_unit_row_; unit_row <= last_unit_row_; ++unit_row) {
    const auto rows = wanted_rows(unit_row);
    if (!decode_units(unit_row, rows, index)) return false;
    transform(unit_row, rows);
    repeat_sides(unit_row);
    write_rows(box, unit_row, out.data());
  }
  return true;
}

}  // namespace headrace::codec::detail
