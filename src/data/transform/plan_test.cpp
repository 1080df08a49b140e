#include "data/transform/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "data/transform/shorthand.h"

namespace headrace::transform {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace transforms;

constexpr Geometry kFiles{0, 0, 3}, kDigits{28, 28, 1};
const ToDtype kToFloat{.dtype = "float32", .scale = true};

Plan plan_of(const std::vector<TransformSpec>& specs, Geometry in) {
  return {operations_of(specs), Schema::image_and_labels(in.height, in.width, in.channels), PixelLayout::nchw};
}

std::string refusal(const std::vector<TransformSpec>& specs, Geometry in = kFiles) {
  return error_of(ErrorCode::invalid_argument, [&] { plan_of(specs, in); });
}

TEST(Plan, AListThatTheOnePassCanDoIsOneStep) {
  const Plan plan = plan_of(
      {Resize{.size = {256}}, CenterCrop{.size = {224}}, kToFloat, Normalize{.mean = {0.5}, .std = {0.25}}}, kFiles);
  EXPECT_TRUE(plan.is_one_pass());
  EXPECT_EQ(plan.size(), (Geometry{224, 224, 3}));
  EXPECT_EQ(plan.type(), PixelType::f32);
  EXPECT_FALSE(plan.draws());
  const auto told = plan.explain();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_THAT(told[0].operations, ElementsAre("Resize", "CenterCrop", "ToDtype", "Normalize"));
  EXPECT_TRUE(told[0].fused);
  EXPECT_THAT(told[0].why, IsEmpty());
}

TEST(Plan, FusesWhatItSaysAndSaysWhatItDoesNot) {
  const Plan plan =
      plan_of({RandomHorizontalFlip{}, RandomResizedCrop{.size = {64}}, Pad{.padding = {2}}, kToFloat}, {100, 80, 3});
  EXPECT_FALSE(plan.is_one_pass());
  EXPECT_EQ(plan.size(), (Geometry{68, 68, 3}));
  const auto told = plan.explain();
  ASSERT_EQ(told.size(), 4U);
  EXPECT_THAT(told[0].operations, ElementsAre("RandomHorizontalFlip"));
  EXPECT_TRUE(told[0].fused);
  EXPECT_EQ(told[1].why, "RandomHorizontalFlip before RandomResizedCrop: behind it, both run in one pass");
  EXPECT_THAT(told[2].operations, ElementsAre("Pad"));
  EXPECT_FALSE(told[2].fused);
  EXPECT_EQ(told[2].why, "Pad runs by itself: no pass takes it over");
  EXPECT_EQ(told[3].why, "Pad runs by itself: no pass takes it over");
  EXPECT_TRUE(told[3].fused);
  EXPECT_EQ(plan_of({RandomResizedCrop{.size = {64}}, CenterCrop{.size = {32}}}, kFiles).explain()[1].why,
            "a pass does one of RandomResizedCrop and CenterCrop");
  EXPECT_EQ(plan_of({Resize{.size = {64}}, CenterCrop{.size = {32, 100}}}, kFiles).explain()[1].why,
            "CenterCrop is of a size that not every image has then");
}

TEST(Plan, SaysWhatKeepsAnOperationFromThePassBefore) {
  const auto reasons = [](const std::vector<TransformSpec>& specs, Geometry in) {
    std::vector<std::string> all;
    for (const TransformStep& step : plan_of(specs, in).explain()) all.push_back(step.why);
    return all;
  };
  const Normalize normalize{.mean = {0.5}, .std = {0.25}};
  const RandomResizedCrop crop{.size = {224}};
  EXPECT_THAT(reasons({CenterCrop{.size = {224}}, kToFloat, normalize}, kFiles),
              ElementsAre("", "CenterCrop runs by itself: a pass crops what it has resized"));
  EXPECT_THAT(reasons({crop, kToFloat, RandomHorizontalFlip{}, normalize}, kFiles),
              ElementsAre("", "ToDtype before RandomHorizontalFlip: behind it, both run in one pass",
                          "Normalize gets float32: a pass begins with uint8 pixels"));
  const RandomCrop padded{.size = {200}, .padding = {4}};
  const char* const other_size = "RandomCrop runs by itself: a pass crops padded images to the size that they had";
  EXPECT_THAT(reasons({crop, padded}, kFiles), ElementsAre("", other_size));
  EXPECT_THAT(reasons({crop, padded, RandomHorizontalFlip{}}, kFiles), ElementsAre("", other_size, other_size));
  EXPECT_THAT(reasons({Resize{.size = {256}}, RandomHorizontalFlip{}, crop}, kFiles),
              ElementsAre("", "Resize leaves each image with a size of its own",
                          "RandomHorizontalFlip before RandomResizedCrop: behind it, both run in one pass"));
  EXPECT_THAT(reasons({Resize{.size = {24}}, CenterCrop{.size = {32}}}, kDigits),
              ElementsAre("", "CenterCrop is larger than what Resize leaves"));
}

TEST(Plan, ShorthandAndListAreTheSameStage) {
  TransformOptions options;
  options.size = 224, options.crop = Crop::random_resized, options.pad = 4, options.flip_probability = 0.5;
  options.mean = {0.1, 0.2, 0.3}, options.std = {0.4, 0.5, 0.6};
  const FusedStage shorthand = stage_of(options, kFiles, true);
  const Plan plan =
      plan_of({RandomResizedCrop{.size = {224}}, RandomCrop{.size = {224}, .padding = {4}}, RandomHorizontalFlip{},
               kToFloat, Normalize{.mean = {0.1, 0.2, 0.3}, .std = {0.4, 0.5, 0.6}}},
              kFiles);
  ASSERT_TRUE(plan.is_one_pass());
  const FusedStage& list = plan.first();
  EXPECT_EQ(list.crop.kind, shorthand.crop.kind);
  EXPECT_EQ(list.crop.scale, shorthand.crop.scale);
  EXPECT_EQ(list.crop.ratio, shorthand.crop.ratio);
  EXPECT_EQ(list.pad.top, shorthand.pad.top);
  EXPECT_EQ(list.flip_probability, shorthand.flip_probability);
  EXPECT_EQ(list.out, shorthand.out);
  EXPECT_EQ(list.form.type, shorthand.form.type);
  EXPECT_EQ(list.table->value[2][77], shorthand.table->value[2][77]);
}

TEST(Plan, RefusesUint8AfterNormalize) {
  EXPECT_EQ(refusal({kToFloat, Normalize{.mean = {0}, .std = {1}}, Resize{.size = {8, 8}}}, kDigits),
            "transform: Resize wants uint8 pixels, and gets float32 from Normalize; put it before ToDtype");
  EXPECT_EQ(refusal({Normalize{.mean = {0}, .std = {1}}}, kDigits),
            "transform: Normalize wants float32 or bfloat16, and gets uint8 of the source; put it behind ToDtype");
  EXPECT_THAT(refusal({kToFloat, ToDtype{.dtype = "uint8"}}, kDigits), HasSubstr("ToDtype wants uint8 pixels"));
}

TEST(Plan, RefusesASizeThatIsNotFixedAtTheEnd) {
  EXPECT_EQ(refusal({Resize{.size = {256}}, RandomHorizontalFlip{}}),
            "transform: RandomHorizontalFlip leaves each image with a size of its own; wanted a crop, or a Resize to "
            "height and width, in the list");
  EXPECT_THAT(refusal({}), HasSubstr("a list without operations leaves each image with a size of its own"));
  EXPECT_EQ(refusal({CenterCrop{.size = {8}}, kToFloat, Normalize{.mean = {0, 0}, .std = {1}}}),
            "transform: Normalize: mean has 2 values, the images have 3 channels; wanted 1 value or 3");
  EXPECT_EQ(refusal({std::monostate{}}), "transform: an operation without a name");
}

// Leaves what it is told to.
class Leaving final : public Operation {
 public:
  explicit Leaving(ImageSpec image) : image_(image) {}
  std::string_view name() const noexcept override { return "Leaving"; }
  ImageSpec schema(const ImageSpec&) const override { return image_; }

 private:
  const ImageSpec image_;
};

TEST(Plan, RefusesImagesThatNoKernelTakesByTheNameOfWhoLeavesThem) {
  const auto refusal_of = [](const ImageSpec& image) {
    return error_of(ErrorCode::invalid_argument, [&] {
      Plan({std::make_shared<Leaving>(image)}, Schema::image_and_labels(8, 8, 3), PixelLayout::nchw);
    });
  };
  EXPECT_EQ(refusal_of({{8, 8, 0}, DType::u8}), "transform: Leaving leaves images of 0 channels; wanted 1 to 4");
  EXPECT_EQ(refusal_of({{8, 8, 5}, DType::u8}), "transform: Leaving leaves images of 5 channels; wanted 1 to 4");
  const std::string wanted = "; wanted height and width, or 0 x 0 where each image has a size of its own";
  EXPECT_EQ(refusal_of({{8, 0, 3}, DType::u8}), "transform: Leaving leaves images of 8 x 0" + wanted);
  EXPECT_EQ(refusal_of({{0, 8, 3}, DType::u8}), "transform: Leaving leaves images of 0 x 8" + wanted);
  EXPECT_EQ(refusal_of({{-8, -8, 3}, DType::u8}), "transform: Leaving leaves images of -8 x -8" + wanted);
  EXPECT_EQ(refusal_of({{8, 8, 3}, DType::f64}),
            "transform: Leaving leaves images of float64; wanted uint8, float32 or bfloat16");
}

std::vector<Drawn> draws_of(const Plan& plan, Geometry stored, std::int64_t index) {
  std::vector<ImageSpec> images{{stored, DType::u8}};
  for (const auto& operation : plan.operations()) images.push_back(operation->schema(images.back()));
  std::vector<Drawn> drawn(plan.operations().size());
  plan.draw({7, 3, index}, images, drawn);
  return drawn;
}

// The numbers of a flip behind a crop and a pad are those of the stream behind theirs.
TEST(Draws, CropPadAndFlipKeepTheirStreamWhereverTheyStand) {
  const RandomCrop crop{.size = {24}}, padded{.size = {24}, .padding = {2}};
  const RandomHorizontalFlip flip;
  const Plan usual = plan_of({Resize{.size = {28}}, crop, padded, flip}, kFiles);
  const Plan other = plan_of({flip, Resize{.size = {28}}, crop, padded}, kFiles);
  int flips = 0;
  for (std::int64_t index = 0; index < 100; ++index) {
    SampleRandom random{7, 3, index};
    const auto y = random.below(5), x = random.below(15), down = random.below(5), right = random.below(5);
    const bool flipped = random.uniform() < 0.5;
    const auto found = draws_of(usual, {28, 38, 3}, index), moved = draws_of(other, {28, 38, 3}, index);
    for (const auto& [drawn_crop, drawn_pad, drawn_flip] :
         {std::array{found[1], found[2], found[3]}, std::array{moved[2], moved[3], moved[0]}}) {
      EXPECT_EQ(drawn_crop.number(0), static_cast<int>(y));
      EXPECT_EQ(drawn_crop.number(1), static_cast<int>(x));
      EXPECT_EQ(drawn_pad.number(0), static_cast<int>(down));
      EXPECT_EQ(drawn_pad.number(1), static_cast<int>(right));
      EXPECT_EQ(drawn_flip.number(0) != 0, flipped);
    }
    flips += flipped ? 1 : 0;
  }
  EXPECT_GT(flips, 20);
  EXPECT_LT(flips, 80);
}

TEST(Draws, AddingAnOperationMovesNoOther) {
  const RandomCrop crop{.size = {20}};
  const RandomHorizontalFlip flip;
  const Plan without = plan_of({crop, flip}, kDigits),
             with = plan_of({crop, flip, RandomCrop{.size = {16}}, flip}, kDigits);
  std::set<int> places;
  int same = 0;
  for (std::int64_t index = 0; index < 100; ++index) {
    const auto few = draws_of(without, kDigits, index), many = draws_of(with, kDigits, index);
    EXPECT_EQ(few[0].numbers, many[0].numbers);
    EXPECT_EQ(few[1].numbers, many[1].numbers);
    places.insert(many[2].number(0));
    same += many[1].numbers == many[3].numbers ? 1 : 0;
  }
  EXPECT_EQ(places.size(), 5U);
  EXPECT_GT(same, 20);  // Two flips have nothing to do with one another.
  EXPECT_LT(same, 80);
}

TEST(Draws, KeysDiffer) {
  std::set<std::uint64_t> keys{0, 0x9B05688C2B3E6C1FU, 0x3C6EF372FE94F82BU, 0xA54FF53A5F1D36F1U, 0x510E527FADE682D1U};
  const std::size_t others = keys.size();
  for (const char* name : {"Resize", "CenterCrop", "RandomCrop", "RandomResizedCrop", "Pad", "RandomHorizontalFlip",
                           "ToDtype", "Normalize", "RandomGrayscale", "Mosaic", "MixUp"}) {
    for (int ordinal = 0; ordinal < 8; ++ordinal) keys.insert(operation_key(name, ordinal));
  }
  EXPECT_EQ(keys.size(), others + 88);
  EXPECT_EQ(operation_key("RandomHorizontalFlip", 1), operation_key("RandomHorizontalFlip", 1));
}

}  // namespace
}  // namespace headrace::transform
