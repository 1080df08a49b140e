#include <headrace/transform.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/options/transforms.h"
#include "data/loader/allocation_count.h"
#include "data/loader/testing.h"
#include "data/source/read_sample.h"
#include "data/transform/plan_runner.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using namespace transforms;
using Floats = std::vector<float>;

const ToDtype kToFloat{.dtype = "float32", .scale = true}, kToHalf{.dtype = "bfloat16", .scale = true};

const TinyImages& images() {
  static const TinyImages all{{.classes = 3, .count = 8}};
  return all;
}

std::shared_ptr<const Source> photos() {
  return open_source(images().uri(), Split::train);
}

std::vector<std::vector<std::byte>> images_of(Epoch epoch, std::vector<std::int64_t>* indices) {
  std::vector<std::vector<std::byte>> all;
  while (const auto batch = epoch.next()) {
    const auto bytes = batch->field("image").bytes;
    const std::size_t size = bytes.size() / static_cast<std::size_t>(batch->size());
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch->size()); ++i) {
      const auto one = bytes.subspan(i * size, size);
      all.emplace_back(one.begin(), one.end());
      indices->push_back(batch->sample_indices()[i]);
    }
  }
  return all;
}

DataOptions cropped() {
  DataOptions options = options_of(8, 2);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  options.transform.pad = 2;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.4, 0.5, 0.6};
  options.transform.std = {0.2, 0.3, 0.25};
  return options;
}

TEST(Transform, GivesTheBitsOfValidation) {
  const auto source = photos();
  const DataOptions options = cropped();
  Loader loader{source, options, 7, /*training=*/false};
  std::vector<std::int64_t> indices;
  const auto wanted = images_of(loader.epoch(0), &indices);
  const Transform transform{source->info().schema,
                            {Resize{.size = {27}}, CenterCrop{.size = {24}}, kToFloat,
                             Normalize{.mean = {0.4, 0.5, 0.6}, .std = {0.2, 0.3, 0.25}}}};
  EXPECT_EQ(transform.dtype(), DType::f32);
  EXPECT_EQ(transform.size(), (Geometry{24, 24, 3}));
  EXPECT_TRUE(transform.explain()[0].fused);
  std::vector<std::byte> found(transform.image_bytes());
  ASSERT_EQ(wanted.size(), 24U);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Sample sample = read_sample(*source, indices[i]);
    transform.apply(sample.image().bytes, found);
    ASSERT_EQ(found, wanted[i]) << i;
  }
}

TEST(Transform, GivesTheBytesOfTrainingForASamplesKey) {
  const auto source = photos();
  const DataOptions options = cropped();
  Loader loader{source, options, 7, /*training=*/true};
  std::vector<std::int64_t> indices;
  const auto wanted = images_of(loader.epoch(5), &indices);
  const Transform transform{source->info().schema, transforms_of(options.transform, /*training=*/true, {})};
  std::vector<std::byte> found(transform.image_bytes());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Sample sample = read_sample(*source, indices[i]);
    transform.apply(sample, {7, 5, indices[i]}, found);
    ASSERT_EQ(found, wanted[i]) << i;
    std::fill(found.begin(), found.end(), std::byte{0});
    transform.apply(sample.image(), {7, 5, indices[i]}, found);  // Of the image alone.
    ASSERT_EQ(found, wanted[i]) << i;
  }
}

std::vector<TransformSpec> unfused() {
  return {RandomHorizontalFlip{},
          RandomResizedCrop{.size = {24}},
          Pad{.padding = {1, 2}},
          RandomHorizontalFlip{.p = 0.3},
          kToHalf,
          Normalize{.mean = {0.5}, .std = {0.25}},
          CenterCrop{.size = {20, 28}}};
}

TEST(Transform, IsThreadSafe) {
  const auto source = photos();
  const Transform transform{source->info().schema, unfused()};
  const auto make = [&](std::int64_t index) {
    std::vector<std::byte> image(transform.image_bytes());
    transform.apply(read_sample(*source, index), {1, 2, index}, image);
    return image;
  };
  std::vector<std::vector<std::byte>> wanted;
  for (std::int64_t i = 0; i < source->size(); ++i) wanted.push_back(make(i));
  std::atomic<int> others = 0;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (std::int64_t i = 0; i < source->size(); ++i) {
        if (make(i) != wanted[static_cast<std::size_t>(i)]) ++others;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(others, 0);
}

// What is taken anew was not kept.
TEST(Transform, KeepsTheMemoryOfOrdinaryImagesAndGivesBackThatOfLargeOnes) {
  const Transform transform{Schema::image_and_labels(0, 0, 3), {RandomHorizontalFlip{.p = 1}, CenterCrop{.size = {8}}}};
  std::vector<std::byte> image(transform.image_bytes());
  const auto taken_again = [&](std::int64_t side) {
    const std::vector<std::uint8_t> pixels(static_cast<std::size_t>(side * side * 3));
    Sample sample;
    sample.image().set_pixels(pixels, side, side, 3);
    transform.apply(sample, {}, image);
    AllocationCount::reset_peak();
    transform.apply(sample, {}, image);
    return AllocationCount::peak_growth() >= side * side * 3;
  };
  EXPECT_FALSE(taken_again(480));
  EXPECT_TRUE(taken_again(4800));
}

TEST(Transform, RefusesWhatItCannotDoByName) {
  const Schema schema = photos()->info().schema;
  const Transform drawing{schema, {RandomResizedCrop{.size = {8}}}};
  std::vector<std::byte> image(drawing.image_bytes());
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { drawing.apply(std::span<const std::uint8_t>{}, image); }),
            "transform: the list draws at random; wanted a sample's key: seed, epoch, index");
  const Transform fixed{schema, {Resize{.size = {8, 8}}}};
  EXPECT_EQ(error_of(ErrorCode::invalid_argument,
                     [&] { fixed.apply(std::span<const std::uint8_t>{}, std::span{image}.first(3)); }),
            "transform: room for 3 bytes; an image takes 192");
  const std::vector<std::uint8_t> text(100, 'x');
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { fixed.apply(text, image); }), HasSubstr("not a JPEG or PNG"));
  const Schema numbers{{{.name = "x", .dtype = DType::f32}}};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { Transform(numbers, std::vector<TransformSpec>{}); }),
              HasSubstr("the samples have no image: x float32 ()"));
}

TEST(Transform, TakesPixelsAsItTakesAFile) {
  const Schema digits = Schema::image_and_labels(8, 6, 1);
  const Transform transform{digits, {Pad{.padding = {1, 0}}, kToFloat}, PixelLayout::nhwc};
  EXPECT_EQ(transform.layout(), PixelLayout::nhwc);
  std::vector<std::uint8_t> pixels(48);
  std::iota(pixels.begin(), pixels.end(), std::uint8_t{7});
  Sample sample{2};
  sample[0].set_pixels(pixels, 8, 6, 1);
  std::vector<std::byte> wanted(transform.image_bytes()), found(transform.image_bytes());
  transform.apply(sample, {}, wanted);
  transform.apply(sample[0], found);
  EXPECT_EQ(found, wanted);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data,
                       [&] { transform.apply(Payload::of_pixels(std::span{pixels}.first(42), 7, 6, 1), found); }),
              HasSubstr("field image: uint8 (7, 6, 1); wanted uint8 (8, 6, 1)"));
  const Transform drawing{digits, {RandomHorizontalFlip{}}};
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { drawing.apply(sample[0], found); }),
            "transform: the list draws at random; wanted a sample's key: seed, epoch, index");
}

// ---- Fused and by itself ----

std::vector<std::byte> made_by(const transform::Plan& plan, Sample sample, std::int64_t index) {
  const DataOptions options;
  const detail::EpochTransform epoch{nullptr, plan.first(), options, 3, 1, nullptr};
  detail::ImageWorkspace workspace;
  detail::ImageMaker maker{epoch, workspace, nullptr};
  std::vector<std::byte> out(ImageSpec{plan.size(), DType::u8}.bytes() * transform::bytes_of(plan.type()));
  if (plan.is_one_pass()) {
    maker.make(sample.image(), 1, index, index, out);
  } else {
    detail::PlanRunner{plan, epoch, maker, workspace}.make({sample, sample, 1, index}, {.drawn_as = index}, nullptr,
                                                           out);
  }
  return out;
}

TEST(PlanRunner, OperationsByThemselvesGiveTheBytesOfTheOnePass) {
  const Normalize normalize{.mean = {0.4, 0.5, 0.6}, .std = {0.2, 0.3, 0.25}};
  const RandomCrop padded{.size = {24}, .padding = {2}};
  const std::vector<std::vector<TransformSpec>> lists{
      {RandomResizedCrop{.size = {24}}, padded, RandomHorizontalFlip{}, kToFloat, normalize},
      {RandomResizedCrop{.size = {24, 16}}, RandomHorizontalFlip{}},
      {Resize{.size = {30}}, RandomCrop{.size = {24}}, RandomHorizontalFlip{}, kToHalf, normalize},
      {Resize{.size = {30}}, CenterCrop{.size = {24, 28}}, kToFloat},
      {Resize{.size = {20, 24}}, RandomHorizontalFlip{}, kToFloat, normalize}};
  const auto source = photos();
  for (std::size_t list = 0; list < lists.size(); ++list) {
    for (const PixelLayout layout : {PixelLayout::nchw, PixelLayout::nhwc}) {
      const transform::Plan fused{transform::operations_of(lists[list]), source->info().schema, layout};
      const transform::Plan single{transform::operations_of(lists[list]), source->info().schema, layout,
                                   transform::Plan::Fuse::nothing};
      ASSERT_TRUE(fused.is_one_pass());
      ASSERT_FALSE(single.is_one_pass());
      for (std::int64_t index = 0; index < source->size(); ++index) {
        ASSERT_EQ(made_by(single, read_sample(*source, index), index),
                  made_by(fused, read_sample(*source, index), index))
            << "list " << list << ", sample " << index;
      }
    }
  }
}

// Pixels that need no crop begin with a pass of another kind.
TEST(PlanRunner, AListMayBeginWithAFlipOfPixels) {
  const Schema digits = Schema::image_and_labels(8, 6, 1);
  const Transform transform{digits, {RandomHorizontalFlip{.p = 1}, Pad{.padding = {1, 0}}}};
  EXPECT_TRUE(transform.explain()[0].fused);
  std::vector<std::uint8_t> pixels(48);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i + 1);
  Sample sample;
  sample.image().set_pixels(pixels, 8, 6, 1);
  sample.set_label(3);
  std::vector<std::byte> found(transform.image_bytes());
  transform.apply(sample, {1, 2, 3}, found);
  for (std::size_t y = 0; y < 8; ++y) {
    for (std::size_t x = 0; x < 8; ++x) {
      const std::size_t wanted = x == 0 || x == 7 ? 0 : y * 6 + 7 - x;
      EXPECT_EQ(std::to_integer<std::size_t>(found[y * 8 + x]), wanted) << y << ", " << x;
    }
  }
}

// Leaves images with so many channels: theirs, and these again from the first on where they are too few.
class Rechannelled final : public Operation {
 public:
  explicit Rechannelled(int channels) : channels_(channels) {}
  std::string_view name() const noexcept override { return "Rechannelled"; }
  ImageSpec schema(const ImageSpec& in) const override {
    return {{in.size.height, in.size.width, channels_}, in.dtype};
  }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    const auto& [height, width, channels] = in.image.image.size;
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        for (int c = 0; c < channels_; ++c) out.image.at(y, x)[c] = in.image.at(y, x)[c % channels];
      }
    }
  }

 private:
  const int channels_;
};

TEST(PlanRunner, APassBehindAnotherNumberOfChannelsGivesTheBytesOfAnImageOfThem) {
  const std::vector<std::vector<TransformSpec>> lists{
      {Resize{.size = {8, 8}}},
      {RandomResizedCrop{.size = {8}}, RandomCrop{.size = {8}, .padding = {2}}, RandomHorizontalFlip{}, kToFloat},
      {Pad{.padding = {1}}, Resize{.size = {8, 6}}, kToHalf}};
  for (const auto& [from, to] : {std::pair{3, 1}, std::pair{1, 3}}) {
    for (const auto& list : lists) {
      auto operations = transform::operations_of(list);
      operations.insert(operations.begin(), std::make_shared<Rechannelled>(to));
      const Transform both{Schema::image_and_labels(12, 10, from), operations};
      const Transform list_alone{Schema::image_and_labels(12, 10, to), list};
      std::vector<std::uint8_t> pixels, rechannelled;
      for (int i = 0; i < 12 * 10; ++i) {
        for (int c = 0; c < from; ++c) pixels.push_back(static_cast<std::uint8_t>(2 * i + 50 * c));
        for (int c = 0; c < to; ++c) rechannelled.push_back(static_cast<std::uint8_t>(2 * i + 50 * (c % from)));
      }
      Sample sample, other;
      sample.image().set_pixels(pixels, 12, 10, from);
      other.image().set_pixels(rechannelled, 12, 10, to);
      std::vector<std::byte> found(both.image_bytes()), wanted(list_alone.image_bytes());
      for (std::int64_t index = 0; index < 10; ++index) {
        both.apply(sample, {1, 2, index}, found);
        list_alone.apply(other, {1, 2, index}, wanted);
        ASSERT_EQ(found, wanted) << from << " to " << to << ", sample " << index;
      }
    }
  }
}

// Leaves other images when a sample comes than when the list is compiled.
class Turncoat final : public Operation {
 public:
  Turncoat(ImageSpec compiled, ImageSpec later) : compiled_(compiled), later_(later) {}
  std::string_view name() const noexcept override { return "Turncoat"; }
  ImageSpec schema(const ImageSpec&) const override { return asked_++ == 0 ? compiled_ : later_; }
  void apply(const OperationInput&, const Drawn&, OperationOutput&) const override { FAIL() << "it is refused before"; }

 private:
  const ImageSpec compiled_, later_;
  mutable std::atomic<int> asked_ = 0;
};

TEST(PlanRunner, RefusesASampleWhoseImageIsNotWhatWasCompiled) {
  const std::vector<std::uint8_t> pixels(8 * 8 * 3);
  Sample sample;
  sample.image().set_pixels(pixels, 8, 8, 3);
  const auto refusal = [&](const ImageSpec& compiled, const ImageSpec& later) {
    const Transform transform{Schema::image_and_labels(8, 8, 3),
                              {std::make_shared<Turncoat>(compiled, later), make_operation(CenterCrop{.size = {4}})}};
    std::vector<std::byte> image(transform.image_bytes());
    return error_of(ErrorCode::invalid_argument, [&] { transform.apply(sample, {1, 2, 3}, image); });
  };
  EXPECT_EQ(refusal({{8, 8, 3}, DType::u8}, {{9, 8, 3}, DType::u8}),
            "transform: Turncoat leaves 9 x 8 x 3 uint8 of a sample; when the list was compiled it left "
            "8 x 8 x 3 uint8");
  EXPECT_THAT(refusal({{8, 8, 3}, DType::u8}, {{8, 8, 1}, DType::u8}), HasSubstr("leaves 8 x 8 x 1 uint8"));
  EXPECT_THAT(refusal({{8, 8, 3}, DType::u8}, {{8, 8, 3}, DType::f32}), HasSubstr("leaves 8 x 8 x 3 float32"));
  EXPECT_THAT(refusal({{0, 0, 3}, DType::u8}, {{0, 0, 3}, DType::u8}), HasSubstr("leaves 0 x 0 x 3"));
  EXPECT_THAT(refusal({{0, 0, 3}, DType::u8}, {{8, -8, 3}, DType::u8}), HasSubstr("leaves 8 x -8 x 3"));
}

// The Resize is a step of its own in the first list; in the second it shares one with the crop, and nothing lies
// between them.
TEST(PlanRunner, ASampleCannotTakeAnyAmountOfMemoryBetweenOperations) {
  const Schema files = Schema::image_and_labels(0, 0, 1);
  const std::vector<std::uint8_t> pixels(65'535, 7);
  Sample sample;
  sample.image().set_pixels(pixels, 1, 65'535, 1);
  const Transform apart{files, {Resize{.size = {224}}, RandomHorizontalFlip{}, CenterCrop{.size = {224}}}};
  std::vector<std::byte> image(apart.image_bytes());
  const std::string refused = error_of(ErrorCode::unsupported, [&] { apart.apply(sample, {1, 2, 3}, image); });
  EXPECT_EQ(refused,
            "transform: Resize makes 224 x 14679840: 3288284160 pixels of an image of 1 x 65535; wanted at most "
            "178956970 (data.max_pixels)");
  const Transform together{files, {RandomHorizontalFlip{}, Resize{.size = {224}}, CenterCrop{.size = {224}}}};
  together.apply(sample, {1, 2, 3}, image);
  EXPECT_THAT(image, testing::Each(std::byte{7}));
}

// Repeats the numbers of a field.
class Doubled final : public Operation {
 public:
  explicit Doubled(std::int64_t rank = 1) : rank_(rank) {}
  std::string_view name() const noexcept override { return "Doubled"; }
  std::vector<std::string> fields() const override { return {"numbers"}; }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    std::memcpy(out.image.data, in.image.data, in.image.image.bytes());
    const auto given = in.fields[0].bytes;
    std::vector<std::uint8_t>& twice = out.fields->buffer(0);
    twice.assign(given.begin(), given.end());
    twice.insert(twice.end(), given.begin(), given.end());
    const std::int64_t extents[] = {static_cast<std::int64_t>(twice.size() / sizeof(float)), 1};
    (*out.fields)[0].set_bytes(twice, std::span{extents}.first(static_cast<std::size_t>(rank_)));
  }

 private:
  const std::int64_t rank_;
};

TEST(Transform, FieldsGoFromOperationToOperation) {
  const Schema schema{{{.name = "numbers", .dtype = DType::f32, .shape = {kRagged}},
                       {.name = "image", .shape = {2, 2, 1}, .encoding = Encoding::image}}};
  const Transform transform{schema, {std::make_shared<Doubled>(), std::make_shared<Doubled>()}};
  const Floats numbers{1, 2, 3};
  const std::vector<std::uint8_t> pixels{1, 2, 3, 4};
  Sample in{2}, out{2};
  const std::int64_t extents[] = {3};
  in[0].set_bytes({reinterpret_cast<const std::uint8_t*>(numbers.data()), 12}, extents);
  in[1].set_pixels(pixels, 2, 2, 1);
  std::vector<std::byte> image(transform.image_bytes());
  for (int round = 0; round < 2; ++round) {
    transform.apply(in, {}, out, image);
    ASSERT_EQ(out[0].extents[0], 12);
    Floats found(12);
    std::memcpy(found.data(), out[0].bytes.data(), 48);
    EXPECT_THAT(found, testing::ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3));
    EXPECT_EQ(in[0].bytes.size(), 12U);
  }
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { transform.apply(pixels, image); }),
            "transform: the list reads 2 other fields; wanted a sample");
  Sample torn{2};
  torn[0].set_bytes({reinterpret_cast<const std::uint8_t*>(numbers.data()), 10}, extents);
  torn[1].set_pixels(pixels, 2, 2, 1);
  EXPECT_EQ(error_of(ErrorCode::corrupt_data, [&] { transform.apply(torn, {}, out, image); }),
            "transform: field numbers: 10 bytes; wanted 12, of float32 (3)");
  const Transform wrong{schema, {std::make_shared<Doubled>(2)}};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { wrong.apply(in, {}, out, image); }),
              testing::AllOf(HasSubstr("transform: Doubled: field numbers"), HasSubstr("wanted float32 (-1)")));
}

// Throws where it is told to: in draw(), in apply(), or, of a size that is known, in schema().
class Torn final : public Operation {
 public:
  explicit Torn(std::string_view where) : where_(where) {}
  std::string_view name() const noexcept override { return "Torn"; }
  bool draws() const noexcept override { return true; }
  ImageSpec schema(const ImageSpec& in) const override {
    if (in.size.is_fixed()) tear("schema");
    return in;
  }
  Drawn draw(SampleRandom&, const Geometry&) const override {
    tear("draw");
    return {};
  }
  void apply(const OperationInput&, const Drawn&, OperationOutput&) const override {
    tear("apply");
    throw Error(ErrorCode::corrupt_data, "transform: Torn of its own words");
  }

 private:
  void tear(std::string_view at) const {
    if (where_ == at) throw std::runtime_error("no such box");
  }
  const std::string_view where_;
};

TEST(Transform, NamesTheOperationThatThrows) {
  const auto source = photos();
  const Schema schema = source->info().schema;
  const auto refusal = [&](std::string_view where, ErrorCode code) {
    const Transform transform{schema, {std::make_shared<Torn>(where), make_operation(CenterCrop{.size = {8}})}};
    std::vector<std::byte> image(transform.image_bytes());
    return error_of(code, [&] { transform.apply(read_sample(*source, 0), {1, 2, 3}, image); });
  };
  for (const char* where : {"schema", "draw", "apply"}) {
    EXPECT_EQ(refusal(where, ErrorCode::internal), "transform: Torn: no such box") << where;
  }
  EXPECT_EQ(refusal("", ErrorCode::corrupt_data), "transform: Torn of its own words");
  EXPECT_EQ(error_of(ErrorCode::internal,
                     [] { Transform(Schema::image_and_labels(8, 8, 1), {std::make_shared<Torn>("schema")}); }),
            "transform: Torn: no such box");
}

// Gives each sample the class that it is told to.
class Labelling final : public Operation {
 public:
  explicit Labelling(std::int64_t label) : label_(label) {}
  std::string_view name() const noexcept override { return "Labelling"; }
  std::vector<std::string> fields() const override { return {"labels"}; }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    std::memcpy(out.image.data, in.image.data, in.image.image.bytes());
    (*out.fields)[0].set_number(label_);
  }

 private:
  const std::int64_t label_;
};

TEST(Transform, RefusesAClassThatCannotBe) {
  const std::vector<std::uint8_t> pixels(8);
  Sample in, out;
  in.image().set_pixels(pixels, 4, 2, 1);
  in.set_label(3);
  const Schema schema = Schema::image_and_labels(4, 2, 1);
  std::vector<std::byte> image(8);
  Transform{schema, {std::make_shared<Labelling>(1'000'000)}}.apply(in, {}, out, image);
  EXPECT_EQ(out.label(), 1'000'000);
  const Transform negative{schema, {std::make_shared<Labelling>(-1)}};
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { negative.apply(in, {}, out, image); }),
            "transform: Labelling: label -1; wanted 0 or more");
}

// ---- In a Loader ----

Loader loader_of(const DataOptions& options, const std::vector<TransformSpec>& list) {
  return {photos(), options, 7, /*training=*/true, 0, nullptr, transform::operations_of(list)};
}

TEST(LoaderOfOperations, GivesTheBytesOfTheShorthand) {
  DataOptions options = cropped(), bare = options_of(8, 2);
  Loader shorthand{photos(), options, 7, true};
  Loader list = loader_of(bare, transforms_of(options.transform, true, {}));
  EXPECT_EQ(digests(list.epoch(1)), digests(shorthand.epoch(1)));
}

TEST(LoaderOfOperations, RunsAnyListOfTheOptionsInTrainingAndInEvaluation) {
  DataOptions options = options_of(8, 2);
  const DataOptions bare = options;
  options.transforms = unfused();
  const auto of = [&](const std::vector<TransformSpec>& list, bool training) {
    return Loader{photos(), bare, 7, training, 0, nullptr, transform::operations_of(list)};
  };
  Loader training{photos(), options, 7, /*training=*/true};
  Loader wanted = of(unfused(), true);
  EXPECT_EQ(digests(training.epoch(1)), digests(wanted.epoch(1)));
  EXPECT_THAT(training.state().options, HasSubstr("data.transforms = [{name = \"RandomHorizontalFlip\"}, {name = "));
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { wanted.restore(training.state()); }).find("data: the state is"),
            0U);
  Loader evaluation{photos(), options, 7, /*training=*/false};
  Loader derived = of(eval_transforms_of(unfused(), {}), false);
  EXPECT_EQ(digests(evaluation.epoch(0)), digests(derived.epoch(0)));
  options.eval_transforms = {Resize{.size = {30}}, Pad{.padding = {2}}, CenterCrop{.size = {26}}, kToFloat};
  Loader own{photos(), options, 7, /*training=*/false}, list = of(options.eval_transforms, false);
  EXPECT_EQ(digests(own.epoch(0)), digests(list.epoch(0)));
  EXPECT_EQ(own.height(), 26);
}

TEST(LoaderOfOperations, GivesTheSameBytesOnAnyThreadsWithAnyCacheAndResumed) {
  std::vector<std::uint64_t> wanted;
  for (const int threads : {0, 1, 7}) {
    for (const Cache cache : {Cache::none, Cache::decoded, Cache::encoded}) {
      DataOptions options = options_of(5, threads);
      options.cache = cache;
      Loader loader = loader_of(options, unfused());
      for (int round = 0; round < 2; ++round) {
        const auto found = digests(loader.epoch(2));
        if (wanted.empty()) wanted = found;
        EXPECT_EQ(found, wanted) << threads << " threads";
      }
      EXPECT_EQ(digests(loader.epoch(2, 3)), std::vector(wanted.begin() + 3, wanted.end()));
    }
  }
}

TEST(LoaderOfOperations, IsWhatATransformGives) {
  const auto source = photos();
  Loader loader = loader_of(options_of(8, 2), unfused());
  EXPECT_EQ(loader.height(), 20);
  EXPECT_EQ(loader.width(), 28);
  std::vector<std::int64_t> indices;
  const auto wanted = images_of(loader.epoch(0), &indices);
  const Transform transform{source->info().schema, unfused()};
  EXPECT_EQ(transform.dtype(), DType::bf16);
  std::vector<std::byte> found(transform.image_bytes());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    transform.apply(read_sample(*source, indices[i]), {7, 0, indices[i]}, found);
    ASSERT_EQ(found, wanted[i]) << i;
  }
}

TEST(LoaderOfOperations, SteadyStateAllocatesOneHandleABatch) {
  const TinyImages many{{.classes = 4, .count = 60}};
  for (const std::int64_t threads : {0, 2}) {
    Loader loader{open_source(many.uri(), Split::train), options_of(4, threads), 1, true, 0, nullptr,
                  transform::operations_of(unfused())};
    const auto allocations_of_50_batches = [&](std::int64_t index) {
      auto epoch = loader.epoch(index);
      std::optional<Batch> batch;
      for (int i = 0; i < 5; ++i) batch = epoch.next();
      const std::int64_t before = AllocationCount::allocations();
      for (int i = 0; i < 50; ++i) batch = epoch.next();
      return AllocationCount::allocations() - before;
    };
    // Each worker meets its largest image and crop some time. An allocation a sample would never end.
    std::int64_t found = 0;
    for (std::int64_t index = 0; index < 50 && found != 50; ++index) found = allocations_of_50_batches(index);
    EXPECT_EQ(found, 50) << threads << " threads";
  }
}

TEST(LoaderOfOperations, TellsItsPasses) {
  Loader loader = loader_of(options_of(8, 0), unfused());
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& pass : loader.explain().passes) all.push_back(pass.name);
    return all;
  };
  const std::vector<std::string> before = names();
  digests(loader.epoch(0));
  EXPECT_EQ(names(), before);
  EXPECT_THAT(before, testing::Contains("RandomHorizontalFlip, RandomResizedCrop, Pad, RandomHorizontalFlip, ToDtype, "
                                        "Normalize, CenterCrop"));
  EXPECT_EQ(loader.explain().samples, 24);
  ASSERT_EQ(loader.explain().transforms.size(), 5U);
  EXPECT_EQ(loader.explain().transforms[1].why,
            "RandomHorizontalFlip before RandomResizedCrop: behind it, both run in one pass");
  EXPECT_TRUE(loader.explain().moved);
  EXPECT_FALSE(loader.explain().moved_stage_by_stage);
}

// Five of the eight images of a class have more than 20000 pixels when their shorter side is 128, the others fewer.
TEST(LoaderOfOperations, AnImageThatGrowsTooLargeFollowsThePolicyAndWhatTheListSetsDoesNot) {
  const CenterCrop crop{.size = {150}};
  DataOptions options = options_of(8, 2);
  options.max_pixels = 20'000;
  const auto loader = [&](const std::vector<TransformSpec>& list) {
    return Loader{photos(), options, 7, true, 0, nullptr, transform::operations_of(list)};
  };
  const std::vector<TransformSpec> growing{Resize{.size = {128}}, RandomHorizontalFlip{}, crop};
  Loader failing = loader(growing);
  EXPECT_THAT(
      error_of(ErrorCode::unsupported, [&] { digests(failing.epoch(0)); }),
      testing::AllOf(HasSubstr("data: "), HasSubstr("transform: Resize makes "), HasSubstr("(data.max_pixels)")));
  Loader large = loader({RandomHorizontalFlip{}, crop});
  EXPECT_EQ(digests(large.epoch(0)).size(), 3U);
  options.on_corrupt = OnCorrupt::zero;
  Loader zeroing = loader(growing);
  EXPECT_EQ(digests(zeroing.epoch(0)).size(), 3U);
  EXPECT_EQ(zeroing.statistics().corrupt, 15);
}

TEST(LoaderOfOperations, RefusesAClassThatTheSourceDoesNotHave) {
  const auto loader = [](std::int64_t label) {
    return Loader{photos(),
                  options_of(8, 2),
                  7,
                  true,
                  0,
                  nullptr,
                  {make_operation(CenterCrop{.size = {8}}), std::make_shared<Labelling>(label)}};
  };
  Loader last = loader(2), beyond = loader(3);
  EXPECT_EQ(digests(last.epoch(0)).size(), 3U);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { digests(beyond.epoch(0)); }),
              HasSubstr("transform: Labelling: label 3; wanted 0 to 2"));
}

TEST(LoaderOfOperations, RefusesBothSpellingsAndAStateOfOthers) {
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { loader_of(cropped(), unfused()); }),
            "data: data.transform.size is 24 beside a list of operations; wanted one of the two");
  DataOptions listed = options_of(8, 0);
  listed.transforms = {RandomResizedCrop{.size = {8}}};
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { loader_of(listed, unfused()); }),
            "data: data.transforms is set beside a list of operations; wanted one of the two");
  const LoaderState state = loader_of(options_of(8, 0), {RandomResizedCrop{.size = {8}}}).state();
  Loader other = loader_of(options_of(8, 0), {RandomResizedCrop{.size = {8}}, RandomHorizontalFlip{}});
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { other.restore(state); }),
            "data: the state is of a loader with operations RandomResizedCrop, this one has RandomResizedCrop, "
            "RandomHorizontalFlip");
  Loader larger = loader_of(options_of(8, 0), {RandomResizedCrop{.size = {8, 9}}});
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { larger.restore(state); }),
              HasSubstr("with operations[0].RandomResizedCrop.size [8], this one has [8, 9]"));
  loader_of(options_of(8, 0), {RandomResizedCrop{.size = {8}}}).restore(state);
  Loader shorthand{photos(), cropped(), 7, true};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { shorthand.restore(state); }),
              testing::AnyOf(HasSubstr("data.transform.size"), HasSubstr("data.transform.crop"),
                             HasSubstr("operations RandomResizedCrop")));
}

}  // namespace
}  // namespace headrace
