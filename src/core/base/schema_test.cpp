#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/field.h>

#include <cstring>
#include <functional>
#include <string>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string refusal(std::vector<FieldSpec> fields) {
  return error_of(ErrorCode::invalid_argument, [&] { Schema{std::move(fields)}; });
}

FieldSpec field(std::string name, DType dtype = DType::f32, Shape shape = {}) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
}
FieldSpec image(DType dtype, Shape shape) {
  return {.name = "photo", .dtype = dtype, .shape = std::move(shape), .encoding = Encoding::image};
}

// One of every type, encoding, flag and rank.
Schema every_kind() {
  std::vector<FieldSpec> fields{image(DType::u8, {kRagged, kRagged, 3}),
                                {.name = "caption", .shape = {kRagged}, .encoding = Encoding::text, .optional = true}};
  Shape shape;
  for (std::size_t i = 0; i < kDTypes; ++i) {
    fields.push_back(field("f" + std::string(i, 'x'), *dtype_numbered(static_cast<std::int64_t>(i)), shape));
    fields.back().optional = i % 3 == 0;
    if (shape.size() < kRankMax) shape.push_back(i % 2 == 0 ? kRagged : static_cast<std::int64_t>(i));
  }
  return Schema{fields};
}

TEST(Schema, RefusesTwoFieldsOfOneName) {
  EXPECT_EQ(refusal({field("boxes"), field("mask"), field("boxes", DType::i64)}), "data: two fields named boxes");
}

TEST(Schema, RefusesNamesThatAreNone) {
  EXPECT_THAT(refusal({field("")}), HasSubstr("without a name"));
  EXPECT_THAT(refusal({field("valid")}), HasSubstr("valid"));
  EXPECT_THAT(refusal({field("\xFF")}), HasSubstr("not UTF-8"));
  EXPECT_THAT(refusal({field("a\nb")}), HasSubstr("control character"));
  EXPECT_THAT(refusal({field(std::string("a\0b", 3))}), HasSubstr("control character"));
  EXPECT_THAT(refusal({field("\x7F")}), HasSubstr("control character"));
  EXPECT_THAT(refusal({field(std::string(256, 'x'))}), AllOf(HasSubstr("256 bytes"), HasSubstr("at most 255")));
  EXPECT_EQ((Schema{{field(std::string(255, 'x')), field("H\xC3\xB6he"), field("valid2")}}.size()), 3U);
}

TEST(Schema, RefusesShapesThatNoSampleHas) {
  EXPECT_THAT(refusal({field("boxes", DType::f32, {-2})}), AllOf(HasSubstr("boxes"), HasSubstr("-2")));
  EXPECT_THAT(refusal({field("boxes", DType::f32, {kExtentMax + 1})}), HasSubstr("2147483648"));
  EXPECT_THAT(refusal({field("boxes", DType::f32, Shape(7, 1))}), AllOf(HasSubstr("7 axes"), HasSubstr("at most 6")));
  EXPECT_EQ(Schema({field("a", DType::f32, Shape(6, kExtentMax)), field("b", DType::f32, {0, kRagged})}).size(), 2U);
}

TEST(Schema, RefusesTooManyFields) {
  std::vector<FieldSpec> fields;
  for (int i = 0; i < 256; ++i) fields.push_back(field("f" + std::to_string(i)));
  EXPECT_EQ(Schema{fields}.size(), kFieldsMax);
  fields.push_back(field("one more"));
  EXPECT_THAT(refusal(fields), HasSubstr("257 fields; wanted at most 256"));
}

TEST(Schema, RefusesAnImageThatIsNone) {
  for (const Shape& shape :
       {Shape{}, Shape{8, 8}, Shape{8, 8, 5}, Shape{8, 8, 0}, Shape{8, 8, kRagged}, Shape{0, 8, 3}, Shape{8, 0, 3}}) {
    EXPECT_THAT(refusal({image(DType::u8, shape)}), AllOf(HasSubstr("photo"), HasSubstr("an image of uint8 (")));
  }
  EXPECT_THAT(refusal({image(DType::f32, {8, 8, 3})}), HasSubstr("an image of float32 (8, 8, 3)"));
  for (std::int64_t channels = 1; channels <= 4; ++channels) Schema{{image(DType::u8, {kRagged, 8, channels})}};
}

TEST(Schema, RefusesATextThatIsNone) {
  const auto text = [](DType dtype, Shape shape) {
    return std::vector<FieldSpec>{
        {.name = "caption", .dtype = dtype, .shape = std::move(shape), .encoding = Encoding::text}};
  };
  EXPECT_THAT(refusal(text(DType::i8, {kRagged})), AllOf(HasSubstr("caption"), HasSubstr("a text of int8 (-1)")));
  EXPECT_THAT(refusal(text(DType::u8, {9})), HasSubstr("wanted uint8 (-1)"));
  EXPECT_THAT(refusal(text(DType::u8, {})), HasSubstr("wanted uint8 (-1)"));
  EXPECT_EQ(Schema{text(DType::u8, {kRagged})}.size(), 1U);
}

TEST(Schema, NamesTheNearestField) {
  const Schema schema{{field("image"), field("boxes"), field("labels")}};
  EXPECT_EQ(schema.position("boxes"), 1U);
  EXPECT_EQ(schema.find("labels"), 2U);
  EXPECT_EQ(schema.find("boxs"), std::nullopt);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { schema.position("boxs"); }),
            "data: no field boxs, did you mean boxes? The fields are image, boxes, labels");
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { schema.position("captions"); }),
            "data: no field captions; the fields are image, boxes, labels");
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { Schema{}.position("boxes"); }),
            "data: no field boxes; there are no fields");
}

TEST(Schema, KnowsItsImageAndThePairThatSourcesAlwaysGave) {
  const Schema pair = Schema::image_and_labels(28, 28, 1);
  EXPECT_TRUE(pair.is_image_and_labels());
  EXPECT_TRUE(Schema::image_and_labels(0, 0, 3).is_image_and_labels());
  EXPECT_EQ(Schema::image_and_labels(0, 0, 3)[0].shape, (Shape{kRagged, kRagged, 3}));
  EXPECT_EQ(pair.image(), 0U);
  EXPECT_EQ(Schema{}.image(), std::nullopt);
  EXPECT_EQ(every_kind().image(), 0U);
  std::vector<FieldSpec> fields(pair.fields().begin(), pair.fields().end());
  const auto is_pair = [&fields](const std::function<void(std::vector<FieldSpec>&)>& change) {
    auto changed = fields;
    change(changed);
    return Schema{changed}.is_image_and_labels();
  };
  EXPECT_TRUE(is_pair([](auto&) {}));
  EXPECT_FALSE(is_pair([](auto& f) { f.pop_back(); }));
  EXPECT_FALSE(is_pair([](auto& f) { std::swap(f[0], f[1]); }));
  EXPECT_FALSE(is_pair([](auto& f) { f.push_back(field("boxes")); }));
  EXPECT_FALSE(is_pair([](auto& f) { f[1].dtype = DType::i32; }));
  EXPECT_FALSE(is_pair([](auto& f) { f[1].shape = {1}; }));
  EXPECT_FALSE(is_pair([](auto& f) { f[1].optional = true; }));
  EXPECT_FALSE(is_pair([](auto& f) { f[0].optional = true; }));
  EXPECT_FALSE(is_pair([](auto& f) { f[0].encoding = Encoding::raw; }));
  EXPECT_FALSE(is_pair([](auto& f) { f[0].name = "img"; }));
  EXPECT_FALSE(is_pair([](auto& f) { f[1].name = "label"; }));
}

TEST(Schema, BytesOfAFieldAreKnownUnlessItIsRagged) {
  EXPECT_EQ(field("f", DType::f32, {5, 4}).bytes(), 80);
  EXPECT_EQ(field("f", DType::i64).bytes(), 8);
  EXPECT_EQ(field("f", DType::i64, {0, kExtentMax, kExtentMax, kExtentMax}).bytes(), 0);
  EXPECT_EQ(field("f", DType::f32, {kRagged, 4}).bytes(), std::nullopt);
  EXPECT_EQ(field("f", DType::f32, Shape(3, kExtentMax)).bytes(), std::nullopt) << "more than an int64 holds";
  EXPECT_TRUE(field("f", DType::f32, {4, kRagged}).is_ragged());
  EXPECT_FALSE(field("f", DType::f32, {4, 0}).is_ragged());
}

TEST(Schema, TextTellsAllOfIt) {
  EXPECT_EQ(Schema::image_and_labels(0, 0, 3).text(), "image uint8 (-1, -1, 3) image; labels int64 ()");
  EXPECT_EQ(Schema{}.text(), "");
  const FieldSpec plain = field("boxes", DType::f32, {kRagged, 4});
  EXPECT_EQ(Schema{{plain}}.text(), "boxes float32 (-1, 4)");
  FieldSpec text{.name = "caption", .shape = {kRagged}, .encoding = Encoding::text, .optional = true};
  EXPECT_EQ(Schema{{text}}.text(), "caption uint8 (-1) text optional");
  // Names that look like more than a name.
  EXPECT_EQ(Schema({field("a float32 (); b")}).text(), "\"a float32 (); b\" float32 ()");
  EXPECT_NE(Schema({field("a float32 (); b")}).text(), Schema({field("a"), field("b")}).text());
  EXPECT_EQ(Schema({field("\"\\")}).text(), "\"\\\"\\\\\" float32 ()");
}

TEST(Schema, IsEqualByItsFieldsAndNotByItsMemory) {
  EXPECT_EQ(every_kind(), every_kind());
  EXPECT_EQ(Schema{}, Schema{std::vector<FieldSpec>{}});
  EXPECT_NE(every_kind(), Schema{});
  EXPECT_NE(Schema::image_and_labels(28, 28, 1), Schema::image_and_labels(28, 28, 3));
}

TEST(Schema, BytesComeBack) {
  for (const Schema& schema : {Schema{}, Schema::image_and_labels(28, 28, 1), every_kind()}) {
    const auto bytes = schema_bytes(schema);
    EXPECT_EQ(bytes.size() % 8, 0U);
    EXPECT_LE(bytes.size(), kSchemaBytesMax);
    EXPECT_EQ(schema_of(bytes, "pack"), schema);
  }
}

TEST(Schema, TheLargestFillsItsBytesToTheLast) {
  std::vector<FieldSpec> fields;
  for (int i = 0; i < 256; ++i) {
    std::string name = std::to_string(i);
    name.resize(kFieldNameBytesMax, 'x');
    fields.push_back(field(name, DType::f32, Shape(kRankMax, kRagged)));
  }
  const auto bytes = schema_bytes(Schema{fields});
  EXPECT_EQ(bytes.size(), kSchemaBytesMax);
  EXPECT_EQ(schema_of(bytes, "pack"), Schema{fields});
}

TEST(Schema, RefusesBytesThatEndEarlyOrLate) {
  const auto whole = schema_bytes(every_kind());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    auto part = std::vector<std::byte>(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { schema_of(part, "pack x"); }), StartsWith("pack x: "));
    if (size < 16) continue;
    const auto told = static_cast<std::uint32_t>(size);  // Also where its head agrees.
    std::memcpy(&part[12], &told, sizeof told);
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { schema_of(part, "pack x"); }), HasSubstr("bytes early"));
  }
  auto longer = whole;
  longer.resize(whole.size() + 8);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { schema_of(longer, "pack"); }), HasSubstr("their head says"));
  const auto told = static_cast<std::uint32_t>(longer.size());
  std::memcpy(&longer[12], &told, sizeof told);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { schema_of(longer, "pack"); }), HasSubstr("8 bytes behind"));
}

TEST(Schema, AnyChangedByteIsRefusedOrAnotherSchema) {
  const auto whole = schema_bytes(every_kind());
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      auto changed = whole;
      changed[at] ^= static_cast<std::byte>(flip);
      try {
        const Schema schema = schema_of(changed, "pack");
        EXPECT_NE(schema, every_kind()) << at;
        EXPECT_EQ(schema_bytes(schema), changed) << at;
      } catch (const Error& error) {
        EXPECT_TRUE(error.code() == ErrorCode::corrupt_data || error.code() == ErrorCode::unsupported) << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, whole.size());
}

TEST(Schema, RefusesALaterFormatByNumber) {
  auto bytes = schema_bytes(every_kind());
  bytes[4] = std::byte{9};
  EXPECT_EQ(error_of(ErrorCode::unsupported, [&] { schema_of(bytes, "pack x"); }),
            "pack x: fields of format 9; this build reads 1");
}

TEST(Schema, RefusesBytesOfFieldsThatNoSchemaHas) {
  auto bytes = schema_bytes(Schema({field("a"), field("b")}));  // 16 + 2 * 16.
  bytes[16 + 16 + 8] = std::byte{'a'};
  EXPECT_EQ(error_of(ErrorCode::corrupt_data, [&] { schema_of(bytes, "pack"); }), "pack: two fields named a");
  for (const std::size_t member : {0, 1, 2}) {  // Type, encoding, flag.
    auto unknown = schema_bytes(Schema({field("a")}));
    unknown[16 + member] = std::byte{200};
    EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { schema_of(unknown, "pack"); }),
                AllOf(StartsWith("pack: field 0: type "), HasSubstr(" 200"),
                      HasSubstr("wanted at most " + std::to_string(kDTypes - 1) + ", 2, 1")));
  }
  auto deep = schema_bytes(Schema({field("a", DType::f32, Shape(6, 1)), field("b", DType::f32, Shape(6, 1))}));
  deep[16 + 3] = std::byte{7};
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { schema_of(deep, "pack"); }), StartsWith("pack: "));
  bytes[8] = bytes[9] = std::byte{255};
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { schema_of(bytes, "pack"); }), HasSubstr("65535 fields"));
}

}  // namespace
}  // namespace headrace
