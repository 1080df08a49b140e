#include "data/loader/detail/loader_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error_of.h"

namespace headrace {
namespace {

using detail::check_state;
using detail::state_options;
using detail::ToldOperation;
using testing::HasSubstr;

// As the first version with states wrote it, which knew neither scaled decoding nor limits of samples nor what buckets
// are sorted by.
constexpr const char* kEarlierOptions = R"(training = true
data.last_batch = "drop"
data.shuffle = true
data.shuffle_window = 0
data.buckets = 8
data.sampler = "each"
data.weights = []
data.on_corrupt = "fail"
data.transform.size = 224
data.transform.crop = "random_resized"
data.transform.resize = 0
data.transform.scale = [0.08, 1.0]
data.transform.ratio = [0.75, 1.3333333333333333]
data.transform.pad = 0
data.transform.flip_probability = 0.5
data.transform.mean = [0.0]
data.transform.std = [1.0]
data.transform.dtype = "float32"
data.transform.layout = "nchw"
)";

const Schema kPair = Schema::image_and_labels(0, 0, 3);

DataOptions same_options() {
  DataOptions options;
  options.batch_size = 32;
  options.last_batch = LastBatch::drop;
  options.buckets = 8;
  options.transform.size = 224;
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  return options;
}

LoaderState state_with(const std::string& options) {
  return {.epoch = 1, .position = 64, .seed = 3, .source = 7, .batch_size = 32, .world_size = 1, .options = options};
}

std::string refusal(const std::string& theirs, const DataOptions& ours, bool training = true) {
  return error_of(ErrorCode::invalid_argument, [&] {
    check_state(state_with(theirs), state_with(state_options(ours, training, kPair)), 1000, ours.buckets > 0);
  });
}

TEST(LoaderStateOptions, AKeyThatAnEarlierVersionLacksCountsAsItsDefault) {
  const DataOptions options = same_options();
  check_state(state_with(kEarlierOptions), state_with(state_options(options, true, kPair)), 1000, true);
  DataOptions other = options;
  other.scale_decode = true;
  EXPECT_THAT(refusal(kEarlierOptions, other), HasSubstr("data.scale_decode false, this one has true"));
  other = options;
  other.max_pixels = 1000;
  EXPECT_THAT(refusal(kEarlierOptions, other), HasSubstr("data.max_pixels 178956970, this one has 1000"));
}

TEST(LoaderStateOptions, OfAnEarlierVersionHoldsOutNothing) {
  DataOptions other = same_options();
  other.val_fraction = 0.25;
  EXPECT_THAT(refusal(kEarlierOptions, other), HasSubstr("data.val_fraction 0.0, this one has 0.25"));
}

TEST(LoaderStateOptions, AStateWithoutFieldsIsOfImagesAndLabels) {
  const DataOptions options = same_options();
  EXPECT_EQ(state_options(options, true, kPair).find("fields"), std::string::npos);
  const Schema boxes{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}}}};
  const Schema points{{{.name = "points", .dtype = DType::f32, .shape = {kRagged, 3}}}};
  const auto check = [&](const std::string& theirs, const Schema& ours) {
    check_state(state_with(theirs), state_with(state_options(options, true, ours)), 1000, true);
  };
  check(state_options(options, true, boxes), boxes);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { check(kEarlierOptions, boxes); }),
              HasSubstr("fields image and labels, this one has boxes float32 (-1, 4)"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { check(state_options(options, true, boxes), kPair); }),
              HasSubstr("fields boxes float32 (-1, 4), this one has image and labels"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { check(state_options(options, true, boxes), points); }),
              HasSubstr("fields boxes float32 (-1, 4), this one has points float32 (-1, 3)"));
}

TEST(LoaderStateOptions, AListOfOperationsIsOneOfThem) {
  const DataOptions shorthand = same_options();
  DataOptions list;
  list.batch_size = 32;
  list.last_batch = LastBatch::drop;
  list.buckets = 8;
  list.transforms = {transforms::Pad{.padding = {2}}, transforms::RandomHorizontalFlip{}};
  list.eval_transforms = {transforms::Pad{.padding = {2}}};
  EXPECT_THAT(state_options(list, true, kPair),
              HasSubstr("data.transforms = [{name = \"Pad\", padding = [2]}, {name = \"RandomHorizontalFlip\"}]\n"));
  EXPECT_THAT(state_options(list, false, kPair), HasSubstr("data.transforms = [{name = \"Pad\", padding = [2]}]\n"));
  EXPECT_EQ(state_options(shorthand, true, kPair).find("transforms"), std::string::npos);
  check_state(state_with(state_options(list, true, kPair)), state_with(state_options(list, true, kPair)), 1000, true);
  DataOptions other = list;
  other.transforms.pop_back();
  EXPECT_THAT(
      refusal(state_options(list, true, kPair), other),
      HasSubstr("with data.transforms [{name = \"Pad\", padding = [2]}, {name = \"RandomHorizontalFlip\"}], this "
                "one has [{name = \"Pad\", padding = [2]}]"));
  EXPECT_THAT(refusal(state_options(shorthand, true, kPair), list), HasSubstr("with data.transforms [], this one has"));
  EXPECT_THAT(refusal(state_options(list, true, kPair), shorthand), HasSubstr("padding = [2]}, {name = \"Random"));
}

TEST(LoaderStateOptions, ParametersOfGivenOperationsAreAmongThem) {
  const auto state_of = [](const std::vector<ToldOperation>& operations) {
    return state_with(state_options(same_options(), true, kPair, false, operations));
  };
  const LoaderState state =
      state_of({{"Mosaic", {{"share", "0.5"}}}, {"Grey", {}}, {"Noise", {{"of", "x"}, {"p", "1"}}}});
  EXPECT_THAT(state.options, HasSubstr("operations = Mosaic, Grey, Noise\noperations[0].Mosaic.share = 0.5\n"
                                       "operations[2].Noise.of = x\noperations[2].Noise.p = 1\n"));
  check_state(state, state, 1000, true);
  const auto refusal_of = [&](const std::vector<ToldOperation>& operations) {
    return error_of(ErrorCode::invalid_argument, [&] { check_state(state, state_of(operations), 1000, true); });
  };
  EXPECT_EQ(refusal_of({{"Mosaic", {{"share", "0.5"}}}, {"Grey", {}}, {"Noise", {{"of", "x"}, {"p", "2"}}}}),
            "data: the state is of a loader with operations[2].Noise.p 1, this one has 2");
  EXPECT_EQ(refusal_of({{"Mosaic", {{"share", "0.6"}}}, {"Grey", {}}}),
            "data: the state is of a loader with operations Mosaic, Grey, Noise, this one has Mosaic, Grey");
  EXPECT_EQ(refusal_of({{"Mosaic", {{"share", "0.5"}}}, {"Grey", {{"by", "2"}}}, {"Noise", {{"of", "x"}, {"p", "1"}}}}),
            "data: the state has no operations[1].Grey.by; this loader has 2");
}

TEST(LoaderStateOptions, AResizeThatIsTheDefaultOneIsTheSame) {
  DataOptions options = same_options();
  options.transform.resize = 256;
  check_state(state_with(kEarlierOptions), state_with(state_options(options, true, kPair)), 1000, true);
  options.transform.resize = 257;
  EXPECT_THAT(refusal(kEarlierOptions, options), HasSubstr("data.transform.resize 0, this one has 257"));
}

TEST(LoaderStateOptions, AnUnknownKeyOrALackingKindIsRefused) {
  const DataOptions options = same_options();
  const std::string earlier = kEarlierOptions;
  EXPECT_THAT(refusal(earlier + "data.sorted = 1\n", options), HasSubstr("data.sorted, which this version does not"));
  EXPECT_THAT(refusal(earlier.substr(earlier.find('\n') + 1), options), HasSubstr("the state has no training"));
  EXPECT_THAT(refusal(earlier, options, false), HasSubstr("training true, this one has false"));
}

}  // namespace
}  // namespace headrace
