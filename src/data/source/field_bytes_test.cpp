#include "data/source/field_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "data/loader/allocation_count.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using Bytes = std::vector<std::byte>;

const std::vector<std::uint8_t>& some_bytes() {
  static const auto bytes = [] {
    std::vector<std::uint8_t> made(8192);
    for (std::size_t i = 0; i < made.size(); ++i) made[i] = static_cast<std::uint8_t>(i * 7 % 2);  // Bools and ASCII.
    return made;
  }();
  return bytes;
}
std::span<const std::uint8_t> some(std::size_t count) {
  return std::span{some_bytes()}.first(count);
}

FieldSpec field(std::string name, DType dtype, Shape shape = {}, bool optional = false) {
  return {.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .optional = optional};
}

// A sample with a field of each kind.
struct Example {
  Schema schema{{{.name = "image", .shape = {kRagged, kRagged, 3}, .encoding = Encoding::image},
                 field("labels", DType::i64),
                 field("boxes", DType::f32, {kRagged, 4}),
                 field("mask", DType::boolean, {2, 3}, true),
                 field("depth", DType::f16, {2}, true),
                 {.name = "caption", .shape = {kRagged}, .encoding = Encoding::text},
                 field("flag", DType::boolean)}};
  std::vector<Payload> payloads{Payload::of_file(some(13), some(10)),
                                Payload::of_number(std::int64_t{-5}),
                                Payload::of_bytes(some(48), {3, 4}),
                                Payload::of_bytes(some(6), {2, 3}),
                                Payload{},
                                Payload::of_bytes(some(11), {11}),
                                Payload::of_number(true)};
};

Bytes written(const FieldBytes& format, const std::vector<Payload>& payloads) {
  Bytes bytes(static_cast<std::size_t>(format.size(payloads)), std::byte{0xAA});
  format.write(payloads, bytes);
  return bytes;
}

void expect_equal(const Payload& a, const Payload& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.form, b.form);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.value_bytes, b.value_bytes);
  EXPECT_EQ(a.extents, b.extents);
  EXPECT_EQ(a.value, b.value);
  EXPECT_TRUE(std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin(), b.bytes.end()));
  EXPECT_TRUE(
      std::equal(a.entropy_index.begin(), a.entropy_index.end(), b.entropy_index.begin(), b.entropy_index.end()));
}

// "" where nothing is wrong. `bytes` has exactly its size, so that a sanitizer sees what reads beyond it.
std::string fault(const FieldBytes& format, const Bytes& bytes, std::vector<Payload>& payloads) {
  const auto found = format.read(bytes, {}, payloads);
  if (!found) return "";
  EXPECT_EQ(found->code, ErrorCode::corrupt_data) << found->text;
  return found->text;
}

// Of the example's bytes after a change to the head of the field at `position`.
std::string fault_after(std::size_t position, const std::function<void(FieldHead&)>& change) {
  const Example example;
  const FieldBytes format{example.schema};
  Bytes bytes = written(format, example.payloads);
  FieldHead head;
  std::memcpy(&head, &bytes[position * sizeof head], sizeof head);
  change(head);
  std::memcpy(&bytes[position * sizeof head], &head, sizeof head);
  std::vector<Payload> payloads(example.schema.size(), Payload::of_number(1.0));
  std::string text = fault(format, bytes, payloads);
  const bool all_absent = std::all_of(payloads.begin(), payloads.end(),
                                      [](const Payload& payload) { return payload.kind == Payload::Kind::absent; });
  EXPECT_EQ(all_absent, !text.empty()) << "points into bytes that were refused";
  return text;
}

TEST(FieldBytes, EveryKindOfFieldComesBack) {
  const Example example;
  const FieldBytes format{example.schema};
  const Bytes bytes = written(format, example.payloads);
  EXPECT_EQ(bytes.size(), 7 * 64 + 24 + 48 + 8 + 16U);
  std::vector<Payload> payloads(example.schema.size());
  ASSERT_EQ(fault(format, bytes, payloads), "");
  for (std::size_t i = 0; i < payloads.size(); ++i) expect_equal(payloads[i], example.payloads[i]);
  EXPECT_EQ(payloads[1].number<std::int64_t>(), -5);
}

TEST(FieldBytes, EveryDTypeAndRankComesBack) {
  for (std::size_t number = 0; number < kDTypes; ++number) {
    for (std::size_t rank = 0; rank <= kRankMax; ++rank) {
      for (const bool is_ragged : {false, true}) {
        const DType dtype = *dtype_numbered(static_cast<std::int64_t>(number));
        const Shape extents(rank, 2);
        const Schema schema{{field("f", dtype, is_ragged ? Shape(rank, kRagged) : extents)}};
        const std::size_t size = static_cast<std::size_t>(bytes_of(dtype)) << rank;
        const std::vector<Payload> given{Payload::of_bytes(some(size), extents)};
        std::vector<Payload> payloads(1);
        const Bytes bytes = written(FieldBytes{schema}, given);  // The payloads point into them.
        ASSERT_EQ(fault(FieldBytes{schema}, bytes, payloads), "");
        expect_equal(payloads[0], given[0]);
      }
    }
  }
}

TEST(FieldBytes, NumbersOfEveryWidthComeBack) {
  const Schema schema{{field("a", DType::i8), field("b", DType::i16), field("c", DType::f32), field("d", DType::f64)}};
  const FieldBytes format{schema};
  std::vector<Payload> payloads(4);
  ASSERT_EQ(fault(format,
                  written(format, {Payload::of_number(std::int8_t{-1}), Payload::of_number(std::int16_t{-2}),
                                   Payload::of_number(0.5F), Payload::of_number(-0.25)}),
                  payloads),
            "");
  EXPECT_EQ(payloads[0].number<std::int8_t>(), -1);
  EXPECT_EQ(payloads[1].number<std::int16_t>(), -2);
  EXPECT_EQ(payloads[2].number<float>(), 0.5F);
  EXPECT_EQ(payloads[3].number<double>(), -0.25);
}

TEST(FieldBytes, AFieldThatLiesElsewhereIsLeftAlone) {
  const Example example;
  const FieldBytes format{example.schema, example.schema.image()};
  const Bytes bytes = written(format, example.payloads);
  EXPECT_EQ(bytes.size(), 6 * 64 + 48 + 8 + 16U);
  std::vector<Payload> payloads(example.schema.size());
  payloads[0] = Payload::of_file(some(99));
  ASSERT_EQ(fault(format, bytes, payloads), "");
  EXPECT_EQ(payloads[0].bytes.size(), 99U);
  expect_equal(payloads[5], example.payloads[5]);
  EXPECT_NE(fault(format, Bytes(bytes.begin(), bytes.end() - 8), payloads), "");
  EXPECT_EQ(payloads[0].bytes.size(), 99U) << "also where the others are refused";
  EXPECT_EQ(payloads[5].kind, Payload::Kind::absent);
}

TEST(FieldBytes, ASchemaWithoutFieldsHasNoBytes) {
  const FieldBytes none{Schema{}}, image_alone{Schema{{Example{}.schema[0]}}, 0};
  EXPECT_EQ(none.size({}), 0);
  none.write({}, {});
  EXPECT_EQ(none.read({}, {}, {}), std::nullopt);
  EXPECT_TRUE(none.read(Bytes(8), {}, {}));
  const std::vector<Payload> given{Payload::of_file(some(9))};
  EXPECT_EQ(image_alone.size(given), 0);
}

TEST(FieldBytes, LieAlignedToEightBytes) {
  const Example example;
  const FieldBytes format{example.schema};
  const Bytes bytes = written(format, example.payloads);
  std::vector<Payload> payloads(example.schema.size());
  ASSERT_EQ(fault(format, bytes, payloads), "");
  for (const Payload& payload : payloads) {
    if (payload.kind != Payload::Kind::bytes) continue;
    EXPECT_EQ((reinterpret_cast<const std::byte*>(payload.bytes.data()) - bytes.data()) % 8, 0);
  }
}

TEST(FieldBytes, AreReadWhereverTheyLieInMemory) {
  const Example example;
  const FieldBytes format{example.schema};
  const Bytes bytes = written(format, example.payloads);
  for (std::size_t shift = 1; shift < 8; ++shift) {
    Bytes moved(bytes.size() + shift);
    std::copy(bytes.begin(), bytes.end(), moved.begin() + static_cast<std::ptrdiff_t>(shift));
    std::vector<Payload> payloads(example.schema.size());
    EXPECT_EQ(format.read(std::span{moved}.subspan(shift), {}, payloads), std::nullopt);
    expect_equal(payloads[2], example.payloads[2]);
  }
}

TEST(FieldBytes, AnyEndButTheirsIsRefused) {
  const Example example;
  const FieldBytes format{example.schema};
  const Bytes whole = written(format, example.payloads);
  std::vector<Payload> payloads(example.schema.size());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_NE(fault(format, part, payloads), "") << size;
  }
  EXPECT_THAT(fault(format, Bytes(447), payloads), HasSubstr("447 bytes of fields; the heads of 7 alone have 448"));
  for (const std::size_t more : {1, 8, 64}) {
    Bytes longer = whole;
    longer.insert(longer.end(), more, std::byte{0});
    EXPECT_THAT(fault(format, longer, payloads), HasSubstr("the last of them ends at 544"));
  }
}

TEST(FieldBytes, AnyChangedByteIsRefusedOrAnotherSample) {
  const Example example;
  const FieldBytes format{example.schema};
  const Bytes whole = written(format, example.payloads);
  std::size_t refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      Bytes changed = whole;
      changed[at] ^= static_cast<std::byte>(flip);
      std::vector<Payload> payloads(example.schema.size());
      if (!fault(format, changed, payloads).empty()) {
        ++refused;
      } else {  // All bytes count: what is read writes the same ones.
        EXPECT_EQ(written(format, payloads), changed) << at;
      }
    }
  }
  EXPECT_GT(refused, 7 * sizeof(FieldHead) * 8) << "most changes of a head";
}

TEST(FieldBytes, RefusesFallingAndOverflowingOffsets) {
  const std::int64_t large = std::numeric_limits<std::int64_t>::max(), small = std::numeric_limits<std::int64_t>::min();
  for (const std::int64_t at :
       {std::int64_t{0}, std::int64_t{448}, std::int64_t{464}, std::int64_t{473}, std::int64_t{480}, std::int64_t{520},
        std::int64_t{1} << 40, std::int64_t{-8}, large, small}) {
    EXPECT_THAT(fault_after(2, [at](FieldHead& head) { head.at = at; }),
                HasSubstr("field boxes: its bytes begin at " + std::to_string(at) + "; wanted 472"));
  }
  for (const std::int64_t size :
       {std::int64_t{73}, std::int64_t{1} << 40, std::int64_t{-1}, large, large - 471, small}) {
    EXPECT_THAT(
        fault_after(2, [size](FieldHead& head) { head.size = size; }),
        HasSubstr("field boxes: " + std::to_string(size) + " bytes and an index of 0 from byte 472 on, of 544"));
    EXPECT_THAT(fault_after(2, [size](FieldHead& head) { head.index_size = size; }),
                HasSubstr("field boxes: 48 bytes and an index of " + std::to_string(size)));
  }
}

TEST(FieldBytes, RefusesExtentsThatAreNotThoseOfTheBytes) {
  EXPECT_THAT(fault_after(2, [](FieldHead& head) { head.extents[0] = 2; }), HasSubstr("48 bytes; wanted 32"));
  EXPECT_THAT(fault_after(2, [](FieldHead& head) { head.extents[0] = -3; }), HasSubstr("float32 (-3, 4); wanted"));
  EXPECT_THAT(fault_after(2, [](FieldHead& head) { head.extents[0] = 2147483647; }),
              HasSubstr("48 bytes; wanted 34359738352"));
  EXPECT_THAT(fault_after(3, [](FieldHead& head) { std::swap(head.extents[0], head.extents[1]); }),
              HasSubstr("field mask: bool (3, 2); wanted bool (2, 3)"));
  EXPECT_THAT(fault_after(0, [](FieldHead& head) { head.size = 12, head.index_size = 11, head.form = 0; }),
              HasSubstr("field image: uint8 (); wanted uint8 (-1, -1, 3)"));
}

TEST(FieldBytes, RefusesAFieldThatChangesTypeOrRank) {
  EXPECT_EQ(fault_after(2, [](FieldHead& head) { head.dtype = static_cast<std::uint8_t>(DType::f64); }),
            "field boxes: float64 (3, 4); wanted float32 (-1, 4)");
  EXPECT_EQ(fault_after(1, [](FieldHead& head) { head.dtype = static_cast<std::uint8_t>(DType::f64); }),
            "field labels: float64 (); wanted int64 ()");
  EXPECT_EQ(fault_after(4, [](FieldHead& head) { head.dtype = static_cast<std::uint8_t>(DType::bf16); }),
            "field depth: bfloat16 (); wanted float16 (2)")
      << "also of one that is absent";
  EXPECT_EQ(fault_after(2, [](FieldHead& head) { head.rank = 3, head.extents[2] = 1; }),
            "field boxes: float32 (3, 4, 1); wanted float32 (-1, 4)");
  EXPECT_EQ(fault_after(2, [](FieldHead& head) { head.rank = 7; }), "field boxes: 7 axes; wanted at most 6");
  EXPECT_EQ(fault_after(2, [](FieldHead& head) { head.dtype = 200; }),
            "field boxes: elements of type 200; wanted 0 to " + std::to_string(kDTypes - 1));
}

TEST(FieldBytes, RefusesKindsThatHaveNoBytesHere) {
  for (const int kind : {3, 4, 255}) {
    EXPECT_EQ(fault_after(2, [kind](FieldHead& head) { head.kind = static_cast<std::uint8_t>(kind); }),
              "field boxes: a payload of kind " + std::to_string(kind) + "; wanted 0 to 2");
  }
  EXPECT_EQ(fault_after(0, [](FieldHead& head) { head.form = 2; }), "field image: an image of form 2; wanted 0 or 1");
  EXPECT_THAT(fault_after(2, [](FieldHead& head) { head.form = 1; }), HasSubstr("an encoded image; wanted float32"));
}

TEST(FieldBytes, RefusesAFieldThatIsMissing) {
  const auto absent = [](FieldHead& head) {
    const std::uint8_t dtype = head.dtype;
    head = FieldHead{};
    head.dtype = dtype;
  };
  EXPECT_THAT(fault_after(1, absent), HasSubstr("field labels: absent; wanted int64 () in every sample"));
}

TEST(FieldBytes, RefusesANumberInAnArraysPlace) {
  EXPECT_EQ(fault_after(2,
                        [](FieldHead& head) {
                          head = FieldHead{};
                          head.kind = 1;
                          head.dtype = static_cast<std::uint8_t>(DType::f32);
                        }),
            "field boxes: a number; wanted float32 (-1, 4)");
}

TEST(FieldBytes, RefusesMembersThatSayNothingAndAreNotZero) {
  const auto says_nothing = HasSubstr("a member of its head that says nothing is not 0");
  EXPECT_THAT(fault_after(2, [](FieldHead& head) { head.zero = 1; }), says_nothing);
  EXPECT_THAT(fault_after(2, [](FieldHead& head) { head.value[0] = 1; }), says_nothing);
  EXPECT_THAT(fault_after(2, [](FieldHead& head) { head.extents[2] = 1; }), says_nothing);
  EXPECT_THAT(fault_after(6, [](FieldHead& head) { head.value[1] = 1; }), says_nothing) << "behind a bool's byte";
  const auto has_none = HasSubstr("which has none");
  for (const std::size_t position : {1, 4}) {  // A number, and one that is absent.
    EXPECT_THAT(fault_after(position, [](FieldHead& head) { head.at = 8; }), has_none);
    EXPECT_THAT(fault_after(position, [](FieldHead& head) { head.size = 8; }), has_none);
    EXPECT_THAT(fault_after(position, [](FieldHead& head) { head.index_size = 8; }), has_none);
    EXPECT_THAT(fault_after(position, [](FieldHead& head) { head.form = 1; }), has_none);
    EXPECT_THAT(fault_after(position, [](FieldHead& head) { head.rank = 1; }), has_none);
  }
}

TEST(FieldBytes, RefusesPaddingThatIsNotZero) {
  const Example example;
  const FieldBytes format{example.schema};
  Bytes bytes = written(format, example.payloads);
  std::vector<Payload> payloads(example.schema.size());
  bytes[448 + 23] = std::byte{1};  // The image's 13 bytes and index of 10 end there.
  EXPECT_EQ(fault(format, bytes, payloads), "field image: no zeros behind its bytes, which end at 471 of 544");
}

TEST(FieldBytes, RefusesTextThatIsNotUtf8) {
  const Example example;
  const FieldBytes format{example.schema};
  Bytes bytes = written(format, example.payloads);
  std::vector<Payload> payloads(example.schema.size());
  bytes[448 + 24 + 48 + 8 + 10] = std::byte{0xC3};  // The caption's last: a character that is cut off.
  EXPECT_EQ(fault(format, bytes, payloads), "field caption: byte 10 of 11, 0xC3, is not UTF-8");
}

TEST(FieldBytes, RefusesWhatIsLargerThanItsLimits) {
  const Example example;
  const FieldBytes format{example.schema};
  const Bytes bytes = written(format, example.payloads);
  std::vector<Payload> payloads(example.schema.size());
  const auto found = format.read(bytes, {.bytes = 47}, payloads);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->code, ErrorCode::unsupported);
  EXPECT_EQ(found->text, "field boxes: 48 bytes; wanted at most 47 (data.max_sample_bytes)");
}

TEST(FieldBytes, ASampleAllocatesNothing) {
  const Example example;
  const FieldBytes format{example.schema};
  Bytes bytes = written(format, example.payloads);
  std::vector<Payload> payloads(example.schema.size());
  const std::int64_t before = AllocationCount::allocations();
  bool is_refused = false;
  for (int i = 0; i < 100; ++i) {
    format.write(example.payloads, std::span{bytes}.first(static_cast<std::size_t>(format.size(example.payloads))));
    is_refused |= format.read(bytes, {}, payloads).has_value();
  }
  const std::int64_t after = AllocationCount::allocations();
  EXPECT_FALSE(is_refused);
  EXPECT_EQ(after, before);
}

TEST(FieldBytesDeathTest, WritesNoPayloadThatLiesInAStore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Example example;
  const FieldBytes format{example.schema};
  example.payloads[2] = Payload::of_range("shard-1.tar", 0, 48, {3, 4});
  Bytes bytes(static_cast<std::size_t>(format.size(example.payloads)));
  EXPECT_EXIT(format.write(example.payloads, bytes), testing::KilledBySignal(SIGABRT), "boxes.*kind 3");
}

}  // namespace
}  // namespace headrace
