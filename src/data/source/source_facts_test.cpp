#include "data/source/source_facts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "core/base/error_of.h"
#include "core/base/hash.h"

namespace headrace {
namespace {

using testing::HasSubstr;

SourceFacts facts_of(Schema schema) {
  return {.name = "photos.Photos", .size = 3, .classes = 4, .schema = std::move(schema), .labels = {0, 3, 1}};
}

// States of loaders that earlier versions wrote hold it.
TEST(SourceFacts, TheFingerprintOfImagesAndLabelsIsThatOfEarlierVersions) {
  for (const int side : {0, 8}) {
    const SourceFacts facts = facts_of(Schema::image_and_labels(side, side, 3));
    Xxh3Stream stream;
    stream.update(std::as_bytes(std::span{facts.name}));
    const std::array<std::int64_t, 8> numbers{3, 4, side, side, 3, 0, 3, 1};  // The labels behind the others.
    stream.update(std::as_bytes(std::span{numbers}));
    EXPECT_EQ(fingerprint_of(facts), stream.digest());
  }
}

TEST(SourceFacts, OtherFieldsAreOfTheFingerprint) {
  const FieldSpec image{.name = "image", .shape = {8, 8, 3}, .encoding = Encoding::image};
  const FieldSpec labels{.name = "labels", .dtype = DType::i64};
  const FieldSpec boxes{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}};
  FieldSpec doubles = boxes;
  doubles.dtype = DType::f64;
  const std::uint64_t plain = fingerprint_of(facts_of(Schema{{image, labels}}));
  const std::uint64_t with_boxes = fingerprint_of(facts_of(Schema{{image, labels, boxes}}));
  EXPECT_NE(with_boxes, plain);
  EXPECT_NE(fingerprint_of(facts_of(Schema{{image, labels, doubles}})), with_boxes);
}

TEST(SourceFacts, WhatNoSourceHasIsRefused) {
  const auto refusal = [](std::int64_t height, std::int64_t width, std::int64_t channels) {
    const FieldSpec image{.name = "image", .shape = {height, width, channels}, .encoding = Encoding::image};
    return error_of(ErrorCode::invalid_argument, [&] {
      check(facts_of(Schema{{image, {.name = "labels", .dtype = DType::i64}}}));
    });
  };
  EXPECT_EQ(
      refusal(-1, 5, 3),
      "data: photos.Photos has images of -1 x 5 pixels; wanted height and width of 1 to 16,777,216, or -1 for any");
  EXPECT_THAT(refusal(5, kExtentMax, 3), HasSubstr("images of 5 x 2147483647 pixels"));
  EXPECT_EQ(refusal(5, 5, 2), "data: photos.Photos has 2 channels; wanted 1 or 3");
  const SourceFacts facts = facts_of(with_any_size(Schema::image_and_labels(5, 4, 1)));
  check(facts);
  const ImageShape images = stored_shape(facts.schema);
  EXPECT_EQ(images.height + images.width, 0);
  EXPECT_EQ(images.channels, 1);
  const auto check_fields = [](Schema schema) {
    return error_of(ErrorCode::invalid_argument, [&] { check(facts_of(std::move(schema))); });
  };
  EXPECT_THAT(check_fields(Schema{}), HasSubstr("photos.Photos has no fields"));
  EXPECT_THAT(check_fields(Schema{{{.name = "labels", .dtype = DType::f32}}}),
              HasSubstr("3 labels and no field for them: labels float32 ()"));
}

TEST(KnownLabels, OfASchemaWithoutClassesKnowNone) {
  SourceFacts facts = facts_of(Schema{{{.name = "x", .dtype = DType::f32}}});
  facts.labels.clear();
  check(facts);
  KnownLabels labels{facts};
  Sample sample{1};
  sample[0].set_number(2.0F);
  labels.note(facts, 1, sample);
  EXPECT_EQ(labels.at(1), -1);
  const ImageShape none = stored_shape(facts.schema);
  EXPECT_EQ(none.height + none.width + none.channels, 0);
}

TEST(KnownLabels, OfASourceOfUnknownSizeAreNotKept) {
  SourceFacts facts = facts_of(Schema{{{.name = "labels", .dtype = DType::i64}}});
  facts.labels.clear();
  facts.size = kUnknownSize;
  check(facts);
  KnownLabels labels{facts};
  Sample sample{1};
  sample[0].set_number(std::int64_t{2});
  labels.note(facts, std::int64_t{1} << 40, sample);
  EXPECT_EQ(labels.at(std::int64_t{1} << 40), -1);
}

TEST(KnownLabels, ALabelOfEightBytesIsKnownAndComparedLikeANumber) {
  SourceFacts facts = facts_of(Schema{{{.name = "labels", .dtype = DType::i64}}});
  const std::int64_t other = facts.labels[1] + 1;
  std::array<std::uint8_t, sizeof other> bytes{};
  std::memcpy(bytes.data(), &other, sizeof other);
  Sample sample{1};
  sample[0].set_bytes(bytes, {});
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { KnownLabels{facts}.note(facts, 1, sample); }),
              HasSubstr("the source's labels say"));
  facts.labels.clear();
  KnownLabels labels{facts};
  labels.note(facts, 1, sample);
  EXPECT_EQ(labels.at(1), other);
  sample[0].set_bytes(std::span{bytes}.first(4), {});
  labels.note(facts, 2, sample);
  EXPECT_EQ(labels.at(2), -1);
}

}  // namespace
}  // namespace headrace
