#include "data/loader/detail/batch_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error_of.h"
#include "core/base/fail.h"
#include "data/source/fields_source.h"

namespace headrace::detail {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

BatchLayout layout_of(std::vector<FieldSpec> fields, std::int64_t batch_size = 7) {
  return {SampleFields{Schema{std::move(fields)}}, ImagePlace{{3, 5, 4}, PixelType::f32, PixelLayout::nchw},
          batch_size};
}

// What a batch of images and labels was before there were other fields, in bytes of its block.
TEST(BatchLayout, OfImageAndLabelsIsWhatItWas) {
  const BatchLayout layout{SampleFields{Schema::image_and_labels(5, 4, 3)},
                           ImagePlace{{3, 5, 4}, PixelType::bf16, PixelLayout::nhwc}, 7};
  ASSERT_TRUE(layout.image.has_value());
  EXPECT_EQ(layout.image->at, 0U);
  EXPECT_EQ(layout.image->sample_bytes, 120U);
  ASSERT_EQ(layout.dense.size(), 1U);
  EXPECT_EQ(layout.dense[0].at, 896U);  // 7 x 120, rounded up to 64.
  EXPECT_EQ(layout.dense[0].sample_bytes, 8U);
  EXPECT_EQ(layout.indices_at, 960U);
  EXPECT_EQ(layout.valid_at, 1024U);
  EXPECT_EQ(layout.block_bytes, 1088U);
  EXPECT_EQ(layout.counted_bytes, 120);
  EXPECT_TRUE(layout.ragged.empty());
  ASSERT_EQ(layout.batch_fields.size(), 3U);
  EXPECT_EQ(layout.batch_fields[0].name + layout.batch_fields[1].name + layout.batch_fields[2].name,
            "imagelabelsvalid");
  EXPECT_THAT(layout.batch_fields[0].shape, ElementsAre(7, 3, 5, 4));
  EXPECT_THAT(layout.batch_fields[0].strides, ElementsAre(60, 1, 12, 3));
  EXPECT_EQ(layout.batch_fields[0].dtype, DType::bf16);
  EXPECT_EQ(layout.batch_fields[2].dtype, DType::u8);
}

TEST(BatchLayout, PlacesOfAnySchemaAreAlignedAndDoNotMeet) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Schema schema = any_schema(seed);
    const BatchLayout layout{SampleFields{schema}, ImagePlace{{3, 5, 4}, PixelType::f32, PixelLayout::nchw}, 7};
    std::vector<std::pair<std::size_t, std::size_t>> places{{layout.indices_at, 56}, {layout.valid_at, 7}};
    const auto add = [&](std::size_t at, std::size_t bytes) {
      if (at != BatchLayout::kNowhere && bytes > 0) places.emplace_back(at, bytes);
    };
    if (layout.image) add(layout.image->at, 7 * layout.image->sample_bytes);
    for (const auto& field : layout.dense) {
      add(field.at, 7 * field.sample_bytes);
      add(field.present_at, 7);
    }
    for (const auto& field : layout.ragged) {
      add(field.offsets_at, 8 * sizeof(std::int64_t));
      add(field.shapes_at, 7 * field.axes * sizeof(std::int64_t));
      add(field.present_at, 7);
    }
    std::sort(places.begin(), places.end());
    std::size_t end = 0;
    for (const auto& [at, bytes] : places) {
      EXPECT_EQ(at % 64, 0U) << schema.text();
      EXPECT_GE(at, end) << schema.text();
      end = at + bytes;
    }
    EXPECT_LE(end, layout.block_bytes) << schema.text();
    EXPECT_EQ(layout.batch_fields.size(), schema.size() + 1) << schema.text();
  }
}

TEST(BatchLayout, RefusesByNameWhatNoBatchHolds) {
  const FieldSpec image{.name = "image", .shape = {kRagged, kRagged, 3}, .encoding = Encoding::image};
  FieldSpec mask = image;
  mask.name = "mask";
  EXPECT_THAT(error_of(ErrorCode::unsupported,
                       [&] {
                         layout_of({image, mask});
                       }),
              AllOf(HasSubstr("field mask"), HasSubstr("beside the image image")));
  const std::int64_t large = kExtentMax;
  EXPECT_THAT(error_of(ErrorCode::out_of_memory,
                       [&] {
                         layout_of({{.name = "huge", .shape = {large, large, large, large}}});
                       }),
              HasSubstr("field huge"));
  EXPECT_THAT(error_of(ErrorCode::out_of_memory,
                       [&] {
                         layout_of({{.name = "rows", .shape = {kRagged, large, large, large}}});
                       }),
              HasSubstr("field rows"));
  EXPECT_THAT(error_of(ErrorCode::out_of_memory,
                       [&] {
                         layout_of({{.name = "wide", .shape = {large, large}}}, 65536);
                       }),
              HasSubstr("field wide"));
}

}  // namespace
}  // namespace headrace::detail
