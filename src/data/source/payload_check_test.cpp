#include "data/source/payload_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::HasSubstr;

const std::vector<std::uint8_t> kZeros(4096, 0);
std::span<const std::uint8_t> zeros(std::size_t count) {
  return std::span{kZeros}.first(count);
}
std::span<const std::uint8_t> bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::uint8_t*>(text.data()), text.size()};
}

const FieldSpec kBoxes{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}};
const FieldSpec kMask{.name = "mask", .dtype = DType::boolean, .shape = {2, 3}};
const FieldSpec kLabel{.name = "labels", .dtype = DType::i64};
const FieldSpec kCaption{.name = "caption", .shape = {kRagged}, .encoding = Encoding::text};
const FieldSpec kPhoto{.name = "photo", .shape = {kRagged, kRagged, 3}, .encoding = Encoding::image};
const FieldSpec kTile{.name = "tile", .shape = {4, 5, 3}, .encoding = Encoding::image};

// "" where nothing is wrong.
std::string fault(const FieldSpec& field, const Payload& payload, ErrorCode code = ErrorCode::corrupt_data,
                  const SampleLimits& limits = {}) {
  const auto found = payload_fault(field, payload, limits);
  if (!found) return "";
  EXPECT_EQ(found->code, code) << found->text;
  return found->text;
}

TEST(PayloadCheck, TakesWhatTheFieldPromises) {
  EXPECT_EQ(fault(kBoxes, Payload::of_bytes(zeros(80), {5, 4})), "");
  EXPECT_EQ(fault(kBoxes, Payload::of_bytes({}, {0, 4})), "") << "no boxes";
  EXPECT_EQ(fault(kMask, Payload::of_bytes(zeros(6), {2, 3})), "");
  EXPECT_EQ(fault(kLabel, Payload::of_number(std::int64_t{-3})), "");
  EXPECT_EQ(fault(kLabel, Payload::of_bytes(zeros(8), {})), "") << "a number that lies somewhere";
  EXPECT_EQ(fault(kCaption, Payload::of_bytes(bytes_of("H\xC3\xB6he\n"), {6})), "");
  EXPECT_EQ(fault(kPhoto, Payload::of_pixels(zeros(60), 4, 5, 3)), "");
  EXPECT_EQ(fault(kPhoto, Payload::of_file(zeros(9), zeros(7))), "");
  EXPECT_EQ(fault(kTile, Payload::of_pixels(zeros(60), 4, 5, 3)), "");
}

TEST(PayloadCheck, RefusesRaggedWhereDenseWasPromised) {
  EXPECT_EQ(fault(kMask, Payload::of_bytes(zeros(9), {3, 3})), "field mask: bool (3, 3); wanted bool (2, 3)");
  EXPECT_EQ(fault(kTile, Payload::of_pixels(zeros(75), 5, 5, 3)),
            "field tile: uint8 (5, 5, 3); wanted uint8 (4, 5, 3)");
}

TEST(PayloadCheck, RefusesAnotherRankOrFixedAxis) {
  EXPECT_EQ(fault(kBoxes, Payload::of_bytes(zeros(80), {20})), "field boxes: float32 (20); wanted float32 (-1, 4)");
  EXPECT_EQ(fault(kBoxes, Payload::of_bytes(zeros(60), {5, 3})), "field boxes: float32 (5, 3); wanted float32 (-1, 4)");
  EXPECT_EQ(fault(kBoxes, Payload::of_bytes(zeros(80), {5, 4, 1})),
            "field boxes: float32 (5, 4, 1); wanted float32 (-1, 4)");
  EXPECT_EQ(fault(kBoxes, Payload::of_bytes(zeros(4), std::vector<std::int64_t>(300, 1))),
            "field boxes: 255 axes; wanted float32 (-1, 4)");
  EXPECT_EQ(fault(kPhoto, Payload::of_pixels(zeros(20), 4, 5, 1)),
            "field photo: uint8 (4, 5, 1); wanted uint8 (-1, -1, 3)");
}

TEST(PayloadCheck, RefusesAnAxisThatIsNegativeOrBeyondTheLimit) {
  EXPECT_THAT(fault(kBoxes, Payload::of_bytes({}, {-1, 4})), HasSubstr("float32 (-1, 4); wanted"));
  EXPECT_THAT(fault(kCaption, Payload::of_bytes({}, {kExtentMax + 1})), HasSubstr("(2147483648); wanted"));
  EXPECT_THAT(fault(kPhoto, Payload::of_pixels({}, 0, 5, 3)), HasSubstr("(0, 5, 3); wanted")) << "no pixels";
}

TEST(PayloadCheck, RefusesBytesThatAreNotThoseOfItsAxes) {
  EXPECT_EQ(fault(kBoxes, Payload::of_bytes(zeros(79), {5, 4})), "field boxes: 79 bytes; wanted 80, of float32 (5, 4)");
  EXPECT_EQ(fault(kLabel, Payload::of_bytes(zeros(4), {})), "field labels: 4 bytes; wanted 8, of int64 ()");
  EXPECT_THAT(fault(kPhoto, Payload::of_pixels(zeros(59), 4, 5, 3)), HasSubstr("59 bytes; wanted 60"));
}

TEST(PayloadCheck, RefusesAxesWhoseProductOverflows) {
  const FieldSpec field{.name = "cube", .dtype = DType::f64, .shape = {kRagged, kRagged, kRagged}};
  // 8 * 2^30 * 2^30 * 2^30 is 0 in 64 bits, as many as there are.
  const std::int64_t side = std::int64_t{1} << 30;
  EXPECT_THAT(fault(field, Payload::of_bytes({}, {side, side, side})), HasSubstr("more bytes than can be counted"));
}

TEST(PayloadCheck, RefusesANumberOfAnotherTypeOrPlace) {
  EXPECT_EQ(fault(kBoxes, Payload::of_number(1.0F)), "field boxes: a number; wanted float32 (-1, 4)");
  EXPECT_EQ(fault(kLabel, Payload::of_number(3)), "field labels: a number of 4 bytes; wanted 8, of int64");
  Payload with_axes = Payload::of_number(std::int64_t{3});
  with_axes.rank = 1;
  EXPECT_EQ(fault(kLabel, with_axes), "field labels: a number of 1 axes");
}

TEST(PayloadCheck, RefusesABoolThatIsNeither) {
  std::vector<std::uint8_t> mask{0, 1, 1, 0, 2, 1};
  EXPECT_EQ(fault(kMask, Payload::of_bytes(mask, {2, 3})), "field mask: element 4 is a bool of 2; wanted 0 or 1");
  const FieldSpec flag{.name = "flag", .dtype = DType::boolean};
  EXPECT_EQ(fault(flag, Payload::of_number(true)), "");
  EXPECT_EQ(fault(flag, Payload::of_number(std::uint8_t{2})), "field flag: a bool of 2; wanted 0 or 1");
}

TEST(PayloadCheck, RefusesTextThatIsNotUtf8) {
  EXPECT_EQ(fault(kCaption, Payload::of_bytes(bytes_of("abc\xE4"
                                                       "de"),
                                              {6})),
            "field caption: byte 3 of 6, 0xE4, is not UTF-8");
  EXPECT_EQ(fault(kCaption, Payload::of_bytes(bytes_of(std::string_view("a\0b", 3)), {3})), "") << "NUL is a character";
}

TEST(PayloadCheck, RefusesAnEncodedImageWhereThereIsNone) {
  EXPECT_EQ(fault(kBoxes, Payload::of_file(zeros(80))), "field boxes: an encoded image; wanted float32 (-1, 4)");
  EXPECT_EQ(fault(kTile, Payload::of_file(zeros(60))), "field tile: an encoded image; wanted uint8 (4, 5, 3)");
  EXPECT_EQ(fault(kPhoto, Payload::of_file({})), "field photo: an encoded image of 0 bytes");
  Payload with_axes = Payload::of_file(zeros(9));
  with_axes.rank = 3;
  EXPECT_THAT(fault(kPhoto, with_axes), HasSubstr("only its bytes tell them"));
  Payload indexed = Payload::of_pixels(zeros(60), 4, 5, 3);
  indexed.entropy_index = zeros(1);
  EXPECT_THAT(fault(kPhoto, indexed), HasSubstr("an entropy index beside"));
}

TEST(PayloadCheck, RefusesAbsenceUnlessTheFieldIsOptional) {
  EXPECT_EQ(fault(kBoxes, {}),
            "field boxes: absent; wanted float32 (-1, 4) in every sample, as the field is not optional");
  FieldSpec optional = kBoxes;
  optional.optional = true;
  EXPECT_EQ(fault(optional, {}), "");
}

TEST(PayloadCheck, RefusesWhatIsLargerThanItsLimitsByTheOptionsName) {
  const auto unsupported = [](const FieldSpec& field, const Payload& payload, const SampleLimits& limits) {
    return fault(field, payload, ErrorCode::unsupported, limits);
  };
  EXPECT_EQ(unsupported(kBoxes, Payload::of_bytes(zeros(80), {5, 4}), {.bytes = 79}),
            "field boxes: 80 bytes; wanted at most 79 (data.max_sample_bytes)");
  EXPECT_EQ(unsupported(kPhoto, Payload::of_file(zeros(80)), {.bytes = 79}),
            "field photo: 80 bytes; wanted at most 79 (data.max_sample_bytes)");
  EXPECT_EQ(unsupported(kPhoto, Payload::of_pixels(zeros(60), 4, 5, 3), {.pixels = 19}),
            "field photo: 4 x 5 pixels; wanted at most 19 (data.max_pixels)");
  EXPECT_EQ(unsupported(kPhoto, Payload::of_pixels(zeros(60), 4, 5, 3), {.pixels = 20, .bytes = 60}), "");
}

TEST(PayloadCheck, RefusesWhatNobodyHasFetched) {
  EXPECT_THAT(fault(kBoxes, Payload::of_range("shard-1.tar", 512, 80, {5, 4}), ErrorCode::internal),
              HasSubstr("field boxes: bytes of shard-1.tar that were not fetched"));
  EXPECT_EQ(fault(kBoxes, Payload::of_frames("a.mp4", 0, 8, 2), ErrorCode::unsupported),
            "field boxes: frames of a.mp4; this build reads no video");
  Payload unknown;
  unknown.kind = static_cast<Payload::Kind>(9);
  EXPECT_EQ(fault(kBoxes, unknown, ErrorCode::internal), "field boxes: a payload of kind 9");
}

TEST(PayloadCheck, ARefusalNamesSampleAndField) {
  const auto found = payload_fault(kBoxes, Payload::of_bytes(zeros(60), {5, 3}), {});
  ASSERT_TRUE(found);
  EXPECT_EQ(error_of(ErrorCode::corrupt_data, [&] { refuse_sample(*found, "photos.Photos[17]"); }),
            "data: photos.Photos[17]: field boxes: float32 (5, 3); wanted float32 (-1, 4)");
}

}  // namespace
}  // namespace headrace
