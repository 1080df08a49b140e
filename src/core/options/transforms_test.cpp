#include "core/options/transforms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/option_tables.h>
#include <headrace/option_text.h>

#include <algorithm>
#include <random>

#include "core/options/contradictions.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using transforms::CenterCrop;
using transforms::Normalize;
using transforms::Pad;
using transforms::RandomCrop;
using transforms::RandomHorizontalFlip;
using transforms::RandomResizedCrop;
using transforms::Resize;
using transforms::ToDtype;
using List = std::vector<TransformSpec>;

constexpr StoredSize kEachItsOwn{}, kSmall{28, 28}, kWide{6, 5};

// The list as TOML has it, which a failed comparison can show.
std::string shown(List list) {
  DataOptions options;
  options.transforms = std::move(list);
  const std::vector<Field> fields = fields_of(options);
  return tables_toml(field_named(fields, "transforms"));
}

std::string shown(TransformOptions options) {
  return write_toml(fields_of(options));
}

TEST(TransformsOf, SaysWhatTheShorthandMeans) {
  TransformOptions options;
  EXPECT_EQ(shown(transforms_of(options, true, kSmall)), R"([{name = "ToDtype", dtype = "float32", scale = true}])");
  options = {.size = 224, .crop = Crop::random_resized, .scale = {0.2, 0.9}, .flip_probability = 0.25, .mean = {0.5}};
  EXPECT_EQ(shown(transforms_of(options, true, kEachItsOwn)),
            R"([{name = "RandomResizedCrop", size = [224], scale = [0.2, 0.9]}, )"
            R"({name = "RandomHorizontalFlip", p = 0.25}, {name = "ToDtype", dtype = "float32", scale = true}, )"
            R"({name = "Normalize", mean = [0.5], std = [1.0]}])");
  EXPECT_EQ(shown(transforms_of(options, false, kEachItsOwn)),
            R"([{name = "Resize", size = [256]}, {name = "CenterCrop", size = [224]}, )"
            R"({name = "ToDtype", dtype = "float32", scale = true}, {name = "Normalize", mean = [0.5], std = [1.0]}])");
  options = {.size = 24, .crop = Crop::random, .resize = 30, .pad = 3, .dtype = PixelType::u8};
  EXPECT_EQ(shown(transforms_of(options, true, kEachItsOwn)),
            R"([{name = "Resize", size = [30]}, {name = "RandomCrop", size = [24]}, )"
            R"({name = "RandomCrop", size = [24], padding = [3]}])");
  options = {.pad = 2, .dtype = PixelType::bf16};
  EXPECT_EQ(shown(transforms_of(options, true, kWide)), R"([{name = "RandomCrop", size = [6, 5], padding = [2]}, )"
                                                        R"({name = "ToDtype", dtype = "bfloat16", scale = true}])");
  EXPECT_THROW(transforms_of(options, true, kEachItsOwn), Error);
  EXPECT_EQ(shown(transforms_of(options, false, kEachItsOwn)),
            R"([{name = "ToDtype", dtype = "bfloat16", scale = true}])");
}

TransformOptions random_options(std::mt19937& random) {
  const auto below = [&random](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  const auto share = [&random] { return static_cast<double>(random() % 1000) / 1000; };
  TransformOptions options;
  if (below(4) > 0) {
    options.size = 1 + below(400);
    options.crop = std::array{Crop::center, Crop::random, Crop::random_resized}[static_cast<std::size_t>(below(3))];
    if (below(2) == 0) options.resize = options.size + below(100);
    if (options.crop == Crop::random_resized && below(2) == 0) options.scale = {0.1 + share() / 4, 0.5 + share() / 2};
    if (options.crop == Crop::random_resized && below(2) == 0) options.ratio = {0.5 + share() / 4, 1 + share()};
  }
  if (below(2) == 0) options.pad = below(10);
  if (below(2) == 0) options.flip_probability = share();
  options.dtype = std::array{PixelType::f32, PixelType::bf16, PixelType::u8}[static_cast<std::size_t>(below(3))];
  if (options.dtype != PixelType::u8 && below(2) == 0) options.mean = {share(), share(), share()};
  if (options.dtype != PixelType::u8 && below(2) == 0) options.std = {0.1 + share()};
  return options;
}

// As shorthand_of() has it: what is 0 by default is 0.
TransformOptions plain(TransformOptions options) {
  if (options.resize == TransformOptions{.size = options.size}.resized_side()) options.resize = 0;
  return options;
}

TEST(ShorthandOf, GivesBackAnyShorthandFromItsLists) {
  std::mt19937 random{11};
  for (int i = 0; i < 2000; ++i) {
    const TransformOptions options = random_options(random);
    ASSERT_EQ(transform_contradiction(options, ""), "");
    const StoredSize stored = options.size == 0 ? kWide : i % 2 == 0 ? kSmall : kEachItsOwn;
    const List train = transforms_of(options, true, stored), eval = transforms_of(options, false, stored);
    const auto both = shorthand_of(train, eval, stored);
    ASSERT_TRUE(both) << shown(train) << shown(eval);
    ASSERT_EQ(shown(*both), shown(plain(options)));
    // One list alone says what it needs.
    for (const bool training : {true, false}) {
      const auto alone = shorthand_of(training ? train : eval, training, stored);
      ASSERT_TRUE(alone);
      ASSERT_EQ(shown(transforms_of(*alone, training, stored)), shown(training ? train : eval));
    }
  }
}

TEST(ShorthandOf, TakesEachWayOfWritingTheSame) {
  const List plainly{Resize{.size = {256}}, CenterCrop{.size = {224}}, RandomCrop{.size = {224}, .padding = {4}},
                     ToDtype{.dtype = "float32", .scale = true}};
  const List otherwise{Resize{.size = {256}},
                       CenterCrop{.size = {224, 224}},
                       RandomCrop{.size = {224, 224}, .padding = {4, 4, 4, 4}},
                       RandomHorizontalFlip{.p = 0},
                       ToDtype{.dtype = "float32", .scale = true},
                       Normalize{.mean = {0}, .std = {1}}};
  const auto wanted = shorthand_of(plainly, true, kEachItsOwn), found = shorthand_of(otherwise, true, kEachItsOwn);
  ASSERT_TRUE(wanted && found);
  EXPECT_EQ(shown(*found), shown(*wanted));
  EXPECT_EQ(found->resize, 0);
  EXPECT_EQ(found->pad, 4);
  const auto stored = shorthand_of({ToDtype{.dtype = "uint8"}}, true, kSmall);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->dtype, PixelType::u8);
}

TEST(ShorthandOf, FindsNoneForWhatNoneSays) {
  const ToDtype to{.dtype = "float32", .scale = true};
  const List none[] = {
      {Resize{.size = {256}}, to},
      {Resize{.size = {224, 224}}, CenterCrop{.size = {224}}, to},
      {CenterCrop{.size = {224}}, to},
      {RandomCrop{.size = {24}}, to},
      {RandomHorizontalFlip{}, RandomResizedCrop{.size = {24}}, to},
      {RandomResizedCrop{.size = {24, 32}}, to},
      {RandomResizedCrop{.size = {24}, .interpolation = "nearest"}, to},
      {RandomResizedCrop{.size = {24}, .antialias = false}, to},
      {Resize{.size = {20}}, CenterCrop{.size = {24}}, to},
      {Resize{.size = {30}, .max_size = 40}, CenterCrop{.size = {24}}, to},
      {RandomCrop{.size = {26}, .padding = {2}}, to},
      {RandomCrop{.size = {28}, .padding = {2, 3}}, to},
      {RandomCrop{.size = {28}, .padding = {65}}, to},
      {RandomCrop{.size = {28}, .padding = {2}, .fill = 1}, to},
      {RandomCrop{.size = {28}, .padding = {2}, .padding_mode = "edge"}, to},
      {Pad{.padding = {2}}, to},
      {ToDtype{.dtype = "float32"}},
      {ToDtype{.dtype = "float16", .scale = true}},
      {Normalize{.mean = {0.5}, .std = {0.5}}},
      {to, to},
      {TransformSpec{}},
  };
  for (const List& list : none) EXPECT_FALSE(shorthand_of(list, true, kSmall)) << shown(list);
  EXPECT_FALSE(shorthand_of({RandomHorizontalFlip{}, to}, false, kSmall)) << "evaluation draws nothing";
  EXPECT_FALSE(shorthand_of({RandomResizedCrop{.size = {24}}, to}, {Resize{.size = {40}}, CenterCrop{.size = {32}}, to},
                            kEachItsOwn))
      << "evaluation of another size";
}

TEST(EvalTransformsOf, AreTheShorthandsOwnWhereItLeavesTheResizeToTheSize) {
  std::mt19937 random{5};
  for (int i = 0; i < 2000; ++i) {
    TransformOptions options = random_options(random);
    if (options.crop == Crop::random_resized) options.resize = 0;  // What its list does not tell.
    const StoredSize stored = options.size == 0 ? kWide : kEachItsOwn;
    const List train = transforms_of(options, true, stored);
    ASSERT_EQ(shown(eval_transforms_of(train, stored)), shown(transforms_of(options, false, stored))) << shown(train);
  }
}

TEST(EvalTransformsOf, RandomCropsTakeTheCenterAndWhatElseIsDrawnIsLeftOut) {
  const auto eval = [](const List& list, StoredSize stored) { return shown(eval_transforms_of(list, stored)); };
  EXPECT_EQ(eval({RandomResizedCrop{.size = {24, 32}, .antialias = false}, RandomHorizontalFlip{}}, kEachItsOwn),
            shown({Resize{.size = {37}, .antialias = false}, CenterCrop{.size = {24, 32}}}));
  EXPECT_EQ(eval({RandomCrop{.size = {24}}}, kEachItsOwn), shown({Resize{.size = {27}}, CenterCrop{.size = {24}}}));
  EXPECT_EQ(eval({Resize{.size = {40}}, RandomCrop{.size = {24}}}, kEachItsOwn),
            shown({Resize{.size = {40}}, CenterCrop{.size = {24}}}));
  EXPECT_EQ(eval({RandomCrop{.size = {32}, .padding = {4}}}, kEachItsOwn), shown({CenterCrop{.size = {32}}}));
  EXPECT_EQ(eval({RandomCrop{.size = {28}, .padding = {4}}}, kSmall), "[]");
  EXPECT_EQ(eval({Resize{.size = {30, 40}}, RandomCrop{.size = {30, 40}, .padding = {4}}}, kEachItsOwn),
            shown({Resize{.size = {30, 40}}}));
  const List padded{Pad{.padding = {1, 2, 3, 4}}, RandomCrop{.size = {34, 32}}};
  EXPECT_EQ(eval(padded, kSmall), shown({padded[0]}));
  EXPECT_EQ(eval({Pad{.padding = {1, 2}}, RandomCrop{.size = {32, 30}}}, kSmall), shown({Pad{.padding = {1, 2}}}));
  // What is larger than the crop is not resized once more.
  EXPECT_EQ(eval({Resize{.size = {40}}, RandomHorizontalFlip{}, RandomCrop{.size = {24}}}, kEachItsOwn),
            shown({Resize{.size = {40}}, CenterCrop{.size = {24}}}));
  EXPECT_EQ(eval({Pad{.padding = {4}}, RandomCrop{.size = {28}}}, kSmall),
            shown({Pad{.padding = {4}}, CenterCrop{.size = {28}}}));
  EXPECT_EQ(eval({RandomResizedCrop{.size = {240}}, RandomCrop{.size = {224}}}, kEachItsOwn),
            shown({Resize{.size = {274}}, CenterCrop{.size = {240}}, CenterCrop{.size = {224}}}));
  EXPECT_EQ(eval({Resize{.size = {40}}, CenterCrop{.size = {20}}, RandomCrop{.size = {24}}}, kEachItsOwn),
            shown({Resize{.size = {40}}, CenterCrop{.size = {20}}, Resize{.size = {27}}, CenterCrop{.size = {24}}}));
}

TEST(WithShorthand, PrefersTheOneThatMeansBothLists) {
  DataOptions options;
  options.transform.layout = PixelLayout::nhwc;
  options.transforms = {RandomResizedCrop{.size = {24}}, ToDtype{.dtype = "float32", .scale = true}};
  options.eval_transforms = {Resize{.size = {40}}, CenterCrop{.size = {24}}, options.transforms[1]};
  for (const bool training : {true, false}) {
    const DataOptions found = with_shorthand(options, training, kEachItsOwn);
    EXPECT_TRUE(found.transforms.empty() && found.eval_transforms.empty());
    EXPECT_EQ(found.transform.resize, 40);
    EXPECT_EQ(found.transform.crop, Crop::random_resized);
    EXPECT_EQ(found.transform.layout, PixelLayout::nhwc);
  }
  // One of its own in evaluation: no shorthand means both, each means its own.
  options.eval_transforms = {Resize{.size = {40}}, CenterCrop{.size = {32}}, options.transforms[1]};
  EXPECT_EQ(with_shorthand(options, true, kEachItsOwn).transform.size, 24);
  EXPECT_EQ(with_shorthand(options, false, kEachItsOwn).transform.size, 32);
  options.transforms.insert(options.transforms.begin(), Pad{.padding = {2}});
  EXPECT_EQ(with_shorthand(options, false, kEachItsOwn).transform.size, 32);
  const DataOptions padded = with_shorthand(options, true, kEachItsOwn);  // No shorthand pads first.
  EXPECT_EQ(shown(padded.transforms), shown(options.transforms));
  EXPECT_EQ(shown(padded.eval_transforms), shown(options.eval_transforms));
  EXPECT_EQ(padded.transform.size, 0);
}

TEST(WithShorthand, OfOptionsWithoutListsAreTheSame) {
  DataOptions options;
  options.transform.size = 24;
  EXPECT_EQ(with_shorthand(options, true, kEachItsOwn).transform.size, 24);
  EXPECT_EQ(shown(transforms_in_force(options, false, kEachItsOwn)),
            shown(transforms_of(options.transform, false, kEachItsOwn)));
}

TEST(TransformsContradiction, NamesTheOperationAndTheParameter) {
  const auto of = [](const List& list) {
    DataOptions options;
    options.transforms = list;
    return transforms_contradiction(options, "data.");
  };
  const ToDtype to{.dtype = "float32"};
  EXPECT_EQ(of({to, Resize{}}), "data.transforms[1].size is missing; Resize has no default for it");
  EXPECT_EQ(of({Normalize{.mean = {0.5}}}), "data.transforms[0].std is missing; Normalize has no default for it");
  EXPECT_EQ(of({ToDtype{}}), "data.transforms[0].dtype is missing; ToDtype has no default for it");
  EXPECT_THAT(of({TransformSpec{}}), HasSubstr("data.transforms[0].name is missing; wanted Resize | CenterCrop | "));
  EXPECT_EQ(of({CenterCrop{.size = {1, 2, 3}}}),
            "data.transforms[0].size has 3 numbers; wanted one, or height and width");
  EXPECT_EQ(of({Pad{.padding = {1, 2, 3}}}), "data.transforms[0].padding has 3 numbers; wanted 1, 2 or 4");
  EXPECT_EQ(of({RandomResizedCrop{.size = {9}, .ratio = {2, 1}}}),
            "data.transforms[0].ratio goes from 2 to 1; wanted the least first");
  EXPECT_THAT(of({Normalize{.mean = {0, 0, 0}, .std = {1, 1}}}), HasSubstr("data.transforms[0].mean has 3 values"));
  EXPECT_EQ(of({RandomResizedCrop{.size = {9}}, RandomHorizontalFlip{}, to, Normalize{.mean = {0, 0}, .std = {1}}}),
            "");
}

TEST(TransformsContradiction, ListsAndShorthandExcludeEachOther) {
  DataOptions options;
  options.eval_transforms = {ToDtype{.dtype = "float32"}};
  EXPECT_THAT(transforms_contradiction(options, "data."), HasSubstr("data.eval_transforms is set without "));
  options.transforms = options.eval_transforms;
  options.transform.layout = PixelLayout::nhwc;
  EXPECT_EQ(transforms_contradiction(options, "data."), "");
  options.eval_transforms.push_back(Resize{});
  EXPECT_THAT(transforms_contradiction(options, "data."), HasSubstr("data.eval_transforms[1].size is missing"));
  options.transform.pad = 2;
  EXPECT_THAT(transforms_contradiction(options, "data."),
              HasSubstr("data.transform.pad is 2, and data.transforms is set"));
}

TEST(DtypeAfter, IsTheLastOneThatIsNamed) {
  EXPECT_EQ(dtype_after({Resize{.size = {9}}}), "uint8");
  EXPECT_EQ(dtype_after({ToDtype{.dtype = "float32"}, ToDtype{.dtype = "bfloat16"}}), "bfloat16");
}

}  // namespace
}  // namespace headrace
