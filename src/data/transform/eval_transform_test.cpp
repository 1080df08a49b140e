#include "data/transform/eval_transform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>
#include <headrace/transform.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"
#include "data/loader/testing.h"
#include "data/source/read_sample.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace transforms;

std::shared_ptr<const Source> photos() {
  static const TinyImages images{{.classes = 3, .count = 8}};
  return open_source(images.uri(), Split::train);
}

DataOptions shorthand() {
  DataOptions options = options_of(8, 2);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.4, 0.5, 0.6};
  options.transform.std = {0.2, 0.3, 0.25};
  return options;
}

DataOptions listed() {
  DataOptions options = options_of(8, 2);
  options.transforms = {RandomHorizontalFlip{},
                        RandomResizedCrop{.size = {24}},
                        Pad{.padding = {1, 2}},
                        ToDtype{.dtype = "bfloat16", .scale = true},
                        Normalize{.mean = {0.5}, .std = {0.25}},
                        CenterCrop{.size = {20, 28}}};
  return options;
}

DataOptions with_own_evaluation() {
  DataOptions options = listed();
  options.transform.layout = PixelLayout::nhwc;
  options.eval_transforms = {Resize{.size = {30}}, CenterCrop{.size = {16}}};
  return options;
}

DataOptions scaled() {
  DataOptions options = shorthand();
  options.transform.size = 8;
  options.scale_decode = true;
  return options;
}

// A run's folder with the file in it.
class StoredRun {
 public:
  explicit StoredRun(const DataOptions& options) {
    transform::write_eval_transform(transform::eval_transform_of(options, photos()->info().schema), path());
  }
  const std::filesystem::path& path() const { return folder_.path(); }
  std::string file() const { return (path() / transform::kEvalTransformFile).string(); }

  std::string text() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void set(const std::string& text) const { std::ofstream(file(), std::ios::binary | std::ios::trunc) << text; }
  // The message about a file in which `of` reads otherwise.
  std::string refusal(ErrorCode code, const std::string& of, const std::string& other) const {
    const std::string whole = text();
    const std::size_t place = whole.find(of);
    EXPECT_NE(place, std::string::npos) << of << " is not in\n" << whole;
    if (place == std::string::npos) return "";
    set(std::string(whole).replace(place, of.size(), other));
    std::string message = error_of(code, [this] { static_cast<void>(Transform::from_run(path())); });
    set(whole);
    return message;
  }

 private:
  const TemporaryFolder folder_;
};

std::vector<std::byte> made_of(const Transform& transform, std::int64_t index) {
  std::vector<std::byte> image(transform.image_bytes());
  transform.apply(read_sample(*photos(), index).image().bytes, image);
  return image;
}

TEST(EvalTransform, GivesTheBytesOfValidation) {
  for (const DataOptions& options : {shorthand(), listed(), with_own_evaluation(), scaled()}) {
    const StoredRun run{options};
    const Transform transform = Transform::from_run(run.path());
    EXPECT_EQ(transform.layout(), options.transform.layout);
    Loader loader{photos(), options, 7, /*training=*/false};
    Epoch epoch = loader.epoch(0);
    std::int64_t samples = 0;
    while (const auto batch = epoch.next()) {
      const std::span<const std::byte> images = batch->field("image").bytes;
      ASSERT_EQ(images.size(), static_cast<std::size_t>(batch->size()) * transform.image_bytes());
      for (std::int64_t i = 0; i < batch->size(); ++i, ++samples) {
        const auto wanted =
            images.subspan(static_cast<std::size_t>(i) * transform.image_bytes(), transform.image_bytes());
        const std::int64_t index = batch->sample_indices()[static_cast<std::size_t>(i)];
        ASSERT_EQ(made_of(transform, index), std::vector<std::byte>(wanted.begin(), wanted.end()))
            << "sample " << index << " of\n"
            << run.text();
      }
    }
    EXPECT_EQ(samples, 24);
  }
  DataOptions as_it_is = scaled();
  as_it_is.scale_decode = false;
  EXPECT_NE(made_of(Transform::from_run(StoredRun{scaled()}.path()), 0),
            made_of(Transform::from_run(StoredRun{as_it_is}.path()), 0));
}

TEST(EvalTransform, HoldsEveryParameterOfTheOperationsInForce) {
  const StoredRun run{shorthand()};
  const transform::EvalTransform read = transform::read_eval_transform(run.path());
  EXPECT_EQ(read.samples, photos()->info().schema);
  const std::vector<TransformSpec> wanted{Resize{.size = {27}}, CenterCrop{.size = {24}},
                                          ToDtype{.dtype = "float32", .scale = true},
                                          Normalize{.mean = {0.4, 0.5, 0.6}, .std = {0.2, 0.3, 0.25}}};
  EXPECT_EQ(read.data.transforms, wanted);
  EXPECT_THAT(run.text(), testing::StartsWith("format = 1 "));
  EXPECT_THAT(run.text(), AllOf(HasSubstr("antialias = true"), HasSubstr("interpolation = \"bilinear\""),
                                HasSubstr("max_size = 0"), HasSubstr("layout = \"nchw\"")));
  DataOptions plain = options_of(8, 0);
  plain.transforms = {Resize{.size = {9, 7}}};
  plain.eval_transforms = {Resize{.size = {9, 7}}};
  plain.max_pixels = 12345;
  const transform::EvalTransform again = transform::read_eval_transform(StoredRun{plain}.path());
  EXPECT_EQ(again.data.max_pixels, 12345);
  EXPECT_EQ(again.data.transforms, plain.transforms);
}

TEST(EvalTransform, OfFieldsBesideTheImageComesBack) {
  const Schema samples{{{"photo", DType::u8, {kRagged, kRagged, 1}, Encoding::image},
                        {"boxes \"of\" all", DType::f32, {kRagged, 4}},
                        {"caption", DType::u8, {kRagged}, Encoding::text, true},
                        {"class", DType::i64}}};
  const TemporaryFolder folder;
  transform::write_eval_transform(transform::eval_transform_of(shorthand(), samples), folder.path());
  EXPECT_EQ(transform::read_eval_transform(folder.path()).samples, samples);
}

TEST(EvalTransform, OfWhichAnyEndIsMissingIsRefusedByTheFilesName) {
  const StoredRun run{listed()};
  const std::string whole = run.text();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    run.set(whole.substr(0, size));
    try {
      static_cast<void>(Transform::from_run(run.path()));
      ADD_FAILURE() << "taken for whole:\n" << whole.substr(0, size);
    } catch (const Error& error) {
      ASSERT_THAT(error.what(), HasSubstr(run.file())) << size;
    }
  }
}

TEST(EvalTransform, NamesFileAndKeyOfWhatIsWrong) {
  const StoredRun run{shorthand()};
  const std::string file = run.file();
  EXPECT_THAT(run.refusal(ErrorCode::invalid_argument, "name = \"Resize\"", "name = \"Resiz\""),
              AllOf(HasSubstr(file + ":"), HasSubstr("transforms[0].name must be Resize | "),
                    HasSubstr("did you mean Resize?")));
  EXPECT_THAT(run.refusal(ErrorCode::invalid_argument, "antialias = true", "antialiaz = true"),
              AllOf(HasSubstr(file + ":"), HasSubstr("unknown key transforms[0].antialiaz")));
  EXPECT_EQ(run.refusal(ErrorCode::invalid_argument, "antialias = true\n", ""),
            file + ": transforms[0].antialias is missing");
  EXPECT_EQ(run.refusal(ErrorCode::invalid_argument, "dtype = \"uint8\"", "dtype = \"uint9\""),
            file + ": fields[0].dtype is \"uint9\"; wanted a type as torch calls it");
  EXPECT_EQ(run.refusal(ErrorCode::corrupt_data, "operations = 4", "operations = 7"),
            file + ": transforms has 4 tables; operations says 7");
  EXPECT_EQ(run.refusal(ErrorCode::unsupported, "format = 1 ", "format = 2 "),
            file + ":1: format is 2; this version reads 1");
  EXPECT_EQ(run.refusal(ErrorCode::corrupt_data, "format = 1 ", "shape = 1 "),
            file + ":1: format is missing; wanted \"format = 1\"");
  EXPECT_THAT(run.refusal(ErrorCode::invalid_argument, "interpolation = \"bilinear\"", "interpolation = \"nearest\""),
              AllOf(HasSubstr(file + ": "), HasSubstr("Resize: interpolation \"nearest\"")));
  EXPECT_THAT(run.refusal(ErrorCode::invalid_argument, "std = [0.2, 0.3, 0.25]", "std = [0.2, 0.3]"),
              HasSubstr(file + ": transforms[3].mean has 3 values and transforms[3].std has 2"));
  EXPECT_THAT(run.refusal(ErrorCode::invalid_argument, "encoding = \"image\"", "encoding = \"raw\""),
              HasSubstr(file + ": transform: the samples have no image"));
  const TemporaryFolder empty;
  EXPECT_EQ(error_of(ErrorCode::not_found, [&] { static_cast<void>(Transform::from_run(empty.path())); }),
            "transform: there is no " + (empty.path() / "eval_transform.toml").string() +
                "; wanted the folder of a run that trained");
}

}  // namespace
}  // namespace headrace
