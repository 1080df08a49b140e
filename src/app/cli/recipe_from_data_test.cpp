#include "app/cli/recipe_from_data.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "app/cli/arguments.h"
#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;

std::string big_endian(std::uint32_t word) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(word >> shift);
  return bytes;
}

// The front of a PNG file, which tells the size; nobody decodes it here.
std::string png_of(std::uint32_t height, std::uint32_t width) {
  return "\x89PNG\r\n\x1a\n" + big_endian(13) + "IHDR" + big_endian(width) + big_endian(height) + "\x08\x02rest";
}

class RecipeOfAFolder : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& bytes) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
  }
  // `count` images of each of these classes.
  void images(const std::string& below, const std::vector<std::string>& classes, int count, const std::string& bytes) {
    for (const std::string& name : classes) {
      for (int i = 0; i < count; ++i) write(fmt::format("{}/{}/{:03}.png", below, name, i), bytes);
    }
  }
  // Half of the pixels are 0, the others 255; labels go round 0, 1, 2.
  void idx(const std::string& below, const std::string& prefix, std::uint32_t count, std::uint32_t side) {
    std::string pixels(std::size_t{count} * side * side, '\0'), labels;
    for (std::size_t i = 0; i < pixels.size(); i += 2) pixels[i] = '\xff';
    for (std::uint32_t i = 0; i < count; ++i) labels += static_cast<char>(i % 3);
    write(below + "/" + prefix + "-images-idx3-ubyte",
          big_endian(0x803) + big_endian(count) + big_endian(side) + big_endian(side) + pixels);
    write(below + "/" + prefix + "-labels-idx1-ubyte", big_endian(0x801) + big_endian(count) + labels);
  }
  LoadedRecipe made(const std::string& below, const std::string& model = "mlp",
                    const std::vector<std::pair<std::string, std::string>>& flags = {}) const {
    return recipe_from_data(folder_ / below, model, flags);
  }
  std::string refusal(ErrorCode code, const std::string& below,
                      const std::vector<std::pair<std::string, std::string>>& flags = {}) const {
    return error_of(code, [&] { made(below, "mlp", flags); });
  }

  const TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path();
};

TEST_F(RecipeOfAFolder, PhotographsWithSplitsBecomeCropsOfOneSize) {
  images("photos/train", {"cat", "dog", "fox"}, 100, png_of(300, 410));
  images("photos/val", {"cat", "dog", "fox"}, 2, png_of(300, 410));
  const LoadedRecipe loaded = made("photos", "resnet18");
  const Recipe& recipe = loaded.recipe;
  EXPECT_EQ(loaded.name, "photos_resnet18");
  EXPECT_EQ(recipe.data.source, "folder:" + (folder_ / "photos").string());
  EXPECT_EQ(recipe.data.val_fraction, 0);
  EXPECT_EQ(recipe.data.batch_size, 32);
  EXPECT_EQ(recipe.data.transform.size, 128);
  EXPECT_EQ(recipe.data.transform.crop, Crop::random_resized);
  EXPECT_THAT(recipe.data.transform.mean, ElementsAre(0.485, 0.456, 0.406));
  EXPECT_EQ(recipe.model.name, "resnet18");
  EXPECT_EQ(recipe.model.num_classes, 3);
  EXPECT_EQ(recipe.model.stem, Stem::imagenet);
  EXPECT_EQ(recipe.tune.samples_max, 8192);
  EXPECT_EQ(loaded.origins.at("data.source"), "the folders train, val");
  EXPECT_EQ(loaded.origins.at("model.num_classes"), "3 classes: the folders of " + (folder_ / "photos/train").string());
  EXPECT_THAT(loaded.origins.at("data.transform.size"), HasSubstr("256 images looked at is 300 pixels"));
  EXPECT_EQ(loaded.origins.at("data.num_workers"), "default");
}

TEST_F(RecipeOfAFolder, IdxFilesTellSizeClassesAndPixels) {
  idx("mnist", "train", 2000, 28);
  idx("mnist", "t10k", 30, 28);
  const LoadedRecipe loaded = made("mnist");
  EXPECT_EQ(loaded.recipe.data.source, "idx:" + (folder_ / "mnist").string());
  EXPECT_EQ(loaded.recipe.data.transform.size, 0);
  EXPECT_THAT(loaded.recipe.data.transform.mean, ElementsAre(0.5));
  EXPECT_THAT(loaded.recipe.data.transform.std, ElementsAre(0.5));
  EXPECT_EQ(loaded.recipe.data.batch_size, 128);
  EXPECT_EQ(loaded.recipe.data.val_fraction, 0);  // There is a test.
  EXPECT_EQ(loaded.recipe.model.num_classes, 3);
  EXPECT_EQ(loaded.origins.at("model.num_classes"), "3 classes: the largest label is 2");
  EXPECT_EQ(loaded.origins.at("data.transform.size"), "as stored: all images are 28 x 28");
}

TEST_F(RecipeOfAFolder, PlainClassFoldersOfSmallSquaresAreTakenWholeAndAPartIsHeldOut) {
  images("tiles", {"a", "b"}, 50, png_of(32, 32));
  const LoadedRecipe loaded = made("tiles/", "resnet18");
  EXPECT_EQ(loaded.name, "tiles_resnet18");
  EXPECT_EQ(loaded.recipe.data.source, "classes:" + (folder_ / "tiles").string());
  EXPECT_EQ(loaded.recipe.data.transform.size, 32);
  EXPECT_EQ(loaded.recipe.data.transform.resize, 32);
  EXPECT_EQ(loaded.recipe.data.transform.crop, Crop::center);
  EXPECT_EQ(loaded.recipe.model.stem, Stem::small);
  EXPECT_EQ(loaded.recipe.data.val_fraction, 0.1);
  EXPECT_EQ(loaded.recipe.data.batch_size, 8);  // An epoch of 90 samples has 11 batches then.
  EXPECT_EQ(loaded.origins.at("data.batch_size"), "there are 90 training samples");
}

TEST_F(RecipeOfAFolder, EveryResnetHasTheSmallStemForSmallImagesAndNoOtherNetworkHas) {
  images("tiles", {"a", "b"}, 20, png_of(40, 40));
  images("larger", {"a", "b"}, 20, png_of(41, 41));
  for (const std::string model : {"resnet18", "resnet34", "resnet50"}) {
    const LoadedRecipe loaded = made("tiles", model);
    EXPECT_EQ(loaded.recipe.model.stem, Stem::small) << model;
    EXPECT_EQ(loaded.origins.at("model.stem"), "images of 40 pixels a side");
    EXPECT_EQ(made("larger", model).recipe.model.stem, Stem::imagenet) << model;
  }
  for (const std::string model : {"mlp", "vit", "mobilenet_v3_small", "resnet"}) {
    EXPECT_EQ(made("tiles", model).recipe.model.stem, Stem::imagenet) << model;
  }
}

TEST_F(RecipeOfAFolder, FlagsComeLastAndAreNoAssumptions) {
  images("photos/train", {"a", "b"}, 20, png_of(70, 90));
  const LoadedRecipe loaded = made("photos", "mlp", {{"data.batch_size", "5"}, {"data.num_workers", "2"}});
  EXPECT_EQ(loaded.recipe.data.batch_size, 5);
  EXPECT_EQ(loaded.recipe.data.num_workers, 2);
  EXPECT_EQ(loaded.origins.at("data.batch_size"), "flag");
  std::vector<std::string> keys;
  for (const Assumption& assumption : assumptions_of(loaded)) keys.push_back(assumption.key);
  EXPECT_THAT(keys, testing::IsSupersetOf({"data.source", "data.transform.size", "model.name", "optimizer.lr",
                                           "train.epochs", "tune.samples_max"}));
  EXPECT_THAT(keys, testing::Not(Contains(testing::AnyOf("data.batch_size", "data.num_workers", "seed"))));
  const auto document = assumptions_json(loaded);
  ASSERT_EQ(document.size(), keys.size());
  EXPECT_EQ(document[0]["key"], keys[0]);
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, "photos", {{"data.batch_size", "0"}}),
              HasSubstr("flag --data.batch_size must be 1 to 65536"));
  EXPECT_EQ(refusal(ErrorCode::invalid_argument, "photos", {{"data.source", "idx:/data"}}),
            "flag --data.source and --data both name the data; wanted one of them");
  EXPECT_EQ(refusal(ErrorCode::invalid_argument, "photos", {{"model.name", "mlp"}}),
            "flag --model.name and --model both name the model; wanted one of them");
}

TEST_F(RecipeOfAFolder, ASizeOfTheUsersOwnContradictsNothingThatIsAssumed) {
  images("tiles", {"a", "b"}, 20, png_of(32, 32));
  const LoadedRecipe larger = made("tiles", "resnet18", {{"data.transform.size", "64"}});
  EXPECT_EQ(larger.recipe.data.transform.size, 64);
  EXPECT_EQ(larger.origins.at("data.transform.resize"), "default");
  EXPECT_EQ(larger.recipe.model.stem, Stem::imagenet);
  images("photos/train", {"a", "b"}, 20, png_of(70, 90));
  EXPECT_EQ(made("photos", "mlp", {{"data.transform.size", "16"}}).recipe.data.transform.crop, Crop::random_resized);
  EXPECT_EQ(made("photos", "mlp", {{"data.transform.size", "0"}}).recipe.data.transform.crop, Crop::center);
}

TEST_F(RecipeOfAFolder, OperationsOfTheUsersOwnStandAlone) {
  images("photos/train", {"a", "b"}, 20, png_of(70, 90));
  const LoadedRecipe loaded =
      made("photos", "mlp",
           {{"data.transforms",
             "[{name = 'CenterCrop', size = [32]}, {name = 'ToDtype', dtype = 'float32', scale = "
             "true}]"}});
  EXPECT_EQ(loaded.recipe.data.transforms.size(), 2U);
  EXPECT_EQ(loaded.recipe.data.transform.size, 0);
  EXPECT_EQ(loaded.origins.at("data.transform.mean"), "default");
}

TEST_F(RecipeOfAFolder, IsARecipeThatCanBeReadAgain) {
  images("photos/train", {"a", "b"}, 20, png_of(70, 90));
  LoadedRecipe loaded = made("photos");
  const std::string text =
      write_toml(fields_of(loaded.recipe), [&](const std::string& key) { return loaded.origins.at(key); });
  EXPECT_THAT(text, HasSubstr("num_classes = 2  # 2 classes: the folders of "));
  write("recipe.toml", text);
  LoadedRecipe again = load_recipe(folder_ / "recipe.toml", {});
  EXPECT_EQ(write_toml(fields_of(again.recipe)), write_toml(fields_of(loaded.recipe)));
}

TEST_F(RecipeOfAFolder, DataThatNoNetworkLearnsFromAreRefused) {
  images("one/train", {"cat"}, 3, png_of(40, 40));
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, "one"), HasSubstr("has 1 class; wanted two or more"));
  images("broken/train", {"cat", "dog"}, 3, "");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "broken"),
              AllOf(HasSubstr("none of the 6 images looked at can be read"), HasSubstr("is empty")));
  images("odd/train", {"cat", "dog"}, 3, "neither JPEG nor PNG");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "odd"), HasSubstr("none of the 6 images looked at tells its size"));
  images("tested/test", {"cat", "dog"}, 3, png_of(40, 40));
  EXPECT_THAT(refusal(ErrorCode::not_found, "tested"), HasSubstr("has no split train; there is test"));
  write("table/table.csv", "a,label\n1,0\n");
  EXPECT_THAT(refusal(ErrorCode::unsupported, "table"), HasSubstr("table.csv"));
}

TEST_F(RecipeOfAFolder, ATorchScriptModuleGivesItsFilesName) {
  images("photos/train", {"a", "b"}, 20, png_of(70, 90));
  EXPECT_EQ(made("photos", "torchscript:nets/wide.v2.pt").name, "photos_wide.v2");
  EXPECT_EQ(made("photos", "torchscript:nets/wide.v2.pt").recipe.model.name, "torchscript:nets/wide.v2.pt");
}

TEST_F(RecipeOfAFolder, TheAssumptionsAreToldLineByLine) {
  images("photos/train", {"a", "b"}, 20, png_of(70, 90));
  const Invocation invocation;
  testing::internal::CaptureStderr();
  {
    Console console{invocation};
    tell_assumptions(console, made("photos"));
  }
  const std::string words = testing::internal::GetCapturedStderr();
  EXPECT_THAT(words, HasSubstr("\n  model.num_classes = 2  # 2 classes: the folders of "));
  EXPECT_THAT(words, HasSubstr("\n  data.transform.crop = \"random_resized\"  # "));
  EXPECT_THAT(words, EndsWith("\n"));
}

// ---- The command line ----

Invocation parsed(std::vector<std::string> words) {
  words.insert(words.begin(), "headrace");
  return std::get<Invocation>(parse_arguments(words, "not built"));
}

std::string refused(std::vector<std::string> words) {
  words.insert(words.begin(), "headrace");
  return error_of(ErrorCode::invalid_argument, [&] { parse_arguments(words, "not built"); });
}

TEST(TuneWithoutARecipe, TakesDataAndModelAndEveryFlag) {
  const Invocation tune =
      parsed({"tune", "--model", "resnet18", "--data.batch_size", "16", "--data", "photos", "--out=run"});
  EXPECT_EQ(tune.recipe, "");
  EXPECT_EQ(tune.data, "photos");
  EXPECT_EQ(tune.model, "resnet18");
  EXPECT_THAT(tune.flags, ElementsAre(testing::Pair("data.batch_size", "16")));
  EXPECT_FALSE(parsed({"tune", "r.toml"}).data.has_value());
}

TEST(TuneWithoutARecipe, HalfOfItOrBothAreRefused) {
  EXPECT_THAT(refused({"tune"}), HasSubstr("recipe is required, or --data DIR and --model NAME"));
  EXPECT_THAT(refused({"tune", "--data", "photos"}), HasSubstr("--data needs --model NAME"));
  EXPECT_THAT(refused({"tune", "--model", "mlp"}), HasSubstr("--model needs --data DIR"));
  EXPECT_THAT(refused({"tune", "r.toml", "--data", "photos", "--model", "mlp"}),
              HasSubstr("r.toml is a recipe, and --data is for a job without one"));
  EXPECT_THAT(refused({"tune", "r.toml", "--model", "mlp"}), HasSubstr("r.toml is a recipe, and --model"));
  EXPECT_THAT(refused({"tune", "--data=", "--model", "mlp"}), HasSubstr("--data is empty"));
  EXPECT_THAT(refused({"tune", "--data", "photos", "--model="}), HasSubstr("--model is empty"));
  EXPECT_THAT(refused({"train", "--data", "photos", "--model", "mlp"}), HasSubstr("unknown flag --data"));
}

}  // namespace
}  // namespace headrace
