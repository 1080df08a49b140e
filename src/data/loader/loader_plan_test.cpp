// Loader::explain() against a loader that makes each stage a pass from one buffer to a new one, and counts the buffers.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/random.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/read_sample.h"
#include "data/store/scratch_folder.h"
#include "data/transform/crop.h"
#include "data/transform/resize.h"
#include "data/transform/shorthand.h"
#include "media/codec/decode.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

using codec::Bytes;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr TinyImages::Shape kShape{.classes = 3, .count = 12, .height = 60, .width = 80};
constexpr std::uint64_t kSeed = 7;

// Pixels in memory, three channels.
class Pixels final : public Source {
 public:
  Pixels() {
    for (int i = 0; i < 20; ++i) images_.push_back(codec::photograph(30, 20, 3, static_cast<unsigned>(i)));
  }
  std::int64_t size() const override { return std::ssize(images_); }
  const SourceInfo& info() const override { return info_; }
  std::string name(std::int64_t index) const override { return fmt::format("pixels[{}]", index); }
  void read(std::int64_t index, Sample& sample) const override {
    sample.image().set_pixels(images_[static_cast<std::size_t>(index)].pixels, 30, 20, 3);
    sample.set_label(0);
  }

 private:
  std::vector<codec::Image> images_;
  const SourceInfo info_{.schema = Schema::image_and_labels(30, 20, 3), .num_classes = 1, .in_memory = true};
};

struct Moved {
  std::string name;
  std::int64_t samples = 0;
  std::size_t in = 0, out = 0;
};

// One sample at a time, stage by stage.
class Unfused {
 public:
  Unfused(const Source& source, const DataOptions& options, bool training)
      : source_(source), options_(options), transform_(options.transform), training_(training) {}

  // As it lies in a batch.
  Bytes make(std::int64_t epoch, std::int64_t index) {
    SampleRandom random{kSeed, epoch, index};
    Sample sample;
    source_.read(index, sample);
    const Payload& image = sample.image();
    Bytes now(image.bytes.begin(), image.bytes.end());
    note("read", now.size(), source_.info().in_memory ? 0 : now.size());
    height_ = image.height(), width_ = image.width(), channels_ = stored_shape(source_.info().schema).channels;
    if (image.form == ImageForm::encoded) now = decode(now);
    if (transform_.size > 0) now = resize(now, random);
    if (training_ && transform_.pad > 0) now = place(now, random);
    if (training_ && transform_.flip_probability > 0 && random.uniform() < transform_.flip_probability) now = flip(now);
    if (transform_.dtype != PixelType::u8) now = normalise(now);
    if (transform_.layout == PixelLayout::nchw && channels_ > 1) now = planes(now);
    if (transform_.dtype == PixelType::bf16) now = to_bfloat(now);
    return stage("into the batch", now, [&](Bytes& out) { out = now; });
  }

  const std::vector<Moved>& moved() const { return moved_; }

 private:
  void note(const std::string& name, std::size_t in, std::size_t out) {
    auto at = std::find_if(moved_.begin(), moved_.end(), [&](const Moved& known) { return known.name == name; });
    if (at == moved_.end()) at = moved_.insert(moved_.end(), {name});
    ++at->samples;
    at->in += in;
    at->out += out;
  }
  template <class Work>
  Bytes stage(const std::string& name, const Bytes& in, const Work& work) {
    Bytes out;
    work(out);
    note(name, in.size(), out.size());
    return out;
  }
  std::size_t at(int y, int x) const {
    return (static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) + static_cast<std::size_t>(x)) *
           static_cast<std::size_t>(channels_);
  }
  static std::vector<float> floats_of(const Bytes& bytes) {
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  static Bytes bytes_of(const std::vector<float>& values) {
    Bytes bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  Bytes decode(const Bytes& file) {
    return stage("decode the whole image", file, [&](Bytes& out) {
      codec::Decoder decoder;
      const auto info = decoder.open(file, channels_);
      height_ = info.height, width_ = info.width;
      out.resize(at(height_, 0));
      decoder.decode({0, 0, height_, width_}, out);
    });
  }

  Bytes resize(const Bytes& whole, SampleRandom& random) {
    const auto window = transform::choose_crop(transform::crop_of(transform_, training_), height_, width_, random);
    const auto rows = transform::needed(window.vertical), columns = transform::needed(window.horizontal);
    Bytes box;
    for (int y = rows.begin; y < rows.begin + rows.size; ++y) {
      const auto row = whole.begin() + static_cast<std::ptrdiff_t>(at(y, columns.begin));
      box.insert(box.end(), row, row + static_cast<std::ptrdiff_t>(columns.size) * channels_);
    }
    note("cut", box.size(), box.size());
    height_ = width_ = static_cast<int>(transform_.size);
    return stage("resize", box, [&](Bytes& out) {
      out.resize(at(height_, 0));
      transform::Resizer{}.resize(box, window.vertical, window.horizontal, channels_, out);
    });
  }

  Bytes place(const Bytes& image, SampleRandom& random) {
    const int pad = static_cast<int>(transform_.pad), height = height_, width = width_;
    const auto places = static_cast<std::uint32_t>(2 * pad + 1);
    const int top = static_cast<int>(random.below(places)), left = static_cast<int>(random.below(places));
    const auto row_bytes = static_cast<std::ptrdiff_t>(at(1, 0));
    const Bytes padded = stage("pad", image, [&](Bytes& out) {
      width_ = width + 2 * pad;
      out.resize(at(height + 2 * pad, 0));
      for (int y = 0; y < height; ++y) {
        std::copy_n(image.begin() + y * row_bytes, row_bytes,
                    out.begin() + static_cast<std::ptrdiff_t>(at(y + pad, pad)));
      }
    });
    Bytes cropped;
    for (int y = top; y < top + height; ++y) {
      const auto row = padded.begin() + static_cast<std::ptrdiff_t>(at(y, left));
      cropped.insert(cropped.end(), row, row + row_bytes);
    }
    note("crop", cropped.size(), cropped.size());
    width_ = width;
    return cropped;
  }

  Bytes flip(const Bytes& image) {
    return stage("flip", image, [&](Bytes& out) {
      for (int y = 0; y < height_; ++y) {
        for (int x = width_ - 1; x >= 0; --x) {
          const auto pixel = image.begin() + static_cast<std::ptrdiff_t>(at(y, x));
          out.insert(out.end(), pixel, pixel + channels_);
        }
      }
    });
  }

  Bytes normalise(const Bytes& image) {
    Bytes floats = stage("to float", image, [&](Bytes& out) {
      std::vector<float> scaled;
      for (const std::uint8_t value : image) scaled.push_back(static_cast<float>(value) / 255.0F);
      out = bytes_of(scaled);
    });
    if (transform_.mean == std::vector{0.0} && transform_.std == std::vector{1.0}) return floats;
    return stage("normalise", floats, [&](Bytes& out) {
      std::vector<float> values = floats_of(floats);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t c = i % static_cast<std::size_t>(channels_);
        const auto of = [c](const std::vector<double>& all) {
          return static_cast<float>(all[all.size() == 1 ? 0 : c]);
        };
        values[i] = (values[i] - of(transform_.mean)) / of(transform_.std);
      }
      out = bytes_of(values);
    });
  }

  Bytes planes(const Bytes& image) {
    return stage("planes", image, [&](Bytes& out) {
      const std::size_t size = transform_.dtype == PixelType::u8 ? 1 : sizeof(float);
      const auto channels = static_cast<std::size_t>(channels_);
      const std::size_t pixels = image.size() / size / channels;
      for (std::size_t i = 0; i < channels * pixels; ++i) {
        const auto value = image.begin() + static_cast<std::ptrdiff_t>((i % pixels * channels + i / pixels) * size);
        out.insert(out.end(), value, value + static_cast<std::ptrdiff_t>(size));
      }
    });
  }

  // To the nearest, ties to even.
  static Bytes to_bytes_of_bfloats(const std::vector<float>& values) {
    Bytes out;
    for (const float value : values) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, &value, sizeof bits);
      const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
      out.push_back(static_cast<std::uint8_t>(rounded));
      out.push_back(static_cast<std::uint8_t>(rounded >> 8));
    }
    return out;
  }
  Bytes to_bfloat(const Bytes& image) {
    return stage("to bfloat16", image, [&](Bytes& out) { out = to_bytes_of_bfloats(floats_of(image)); });
  }

  const Source& source_;
  const DataOptions& options_;
  const TransformOptions& transform_;
  const bool training_;
  int height_ = 0, width_ = 0, channels_ = 0;
  std::vector<Moved> moved_;
};

std::vector<std::string> names(const std::vector<LoaderPlan::Pass>& passes) {
  std::vector<std::string> all;
  for (const LoaderPlan::Pass& pass : passes) all.push_back(pass.name);
  return all;
}

const LoaderPlan::Pass& pass_of(const LoaderPlan& plan, const std::string& name) {
  const auto found =
      std::find_if(plan.passes.begin(), plan.passes.end(), [&](const auto& pass) { return pass.name == name; });
  if (found != plan.passes.end()) return *found;
  static const LoaderPlan::Pass kNone;
  ADD_FAILURE() << "no pass '" << name << "'";
  return kNone;
}

// Whether `some` are in `all`, in the same order.
bool are_among(const std::vector<std::string>& some, const std::vector<std::string>& all) {
  auto at = all.begin();
  for (const std::string& name : some) {
    at = std::find(at, all.end(), name);
    if (at == all.end()) return false;
  }
  return true;
}

// Every byte of an epoch, and what was moved for it.
void expect_the_same_as_unfused(const std::shared_ptr<const Source>& source, const DataOptions& options,
                                bool training) {
  Loader loader{source, options, kSeed, training};
  const LoaderPlan before = loader.explain();
  EXPECT_EQ(before.samples, 0);
  EXPECT_FALSE(before.moved || before.moved_stage_by_stage);
  EXPECT_THAT(before.stage_by_stage, IsEmpty());
  for (const LoaderPlan::Pass& pass : before.passes) EXPECT_FALSE(pass.bytes_in || pass.bytes_out) << pass.name;

  Unfused unfused{*source, options, training};
  Epoch epoch = loader.epoch(2);
  while (const auto batch = epoch.next()) {
    const auto images = batch->field("image").bytes;
    const std::size_t size = images.size() / static_cast<std::size_t>(batch->size());
    for (std::size_t i = 0; i < static_cast<std::size_t>(batch->size()); ++i) {
      const Bytes wanted = unfused.make(2, batch->sample_indices()[i]);
      ASSERT_EQ(wanted.size(), size);
      ASSERT_EQ(std::memcmp(wanted.data(), images.data() + i * size, size), 0)
          << "sample " << batch->sample_indices()[i];
    }
  }

  const LoaderPlan plan = loader.explain();
  EXPECT_EQ(plan.samples, source->size());
  EXPECT_TRUE(are_among(names(plan.passes), names(before.passes)))
      << testing::PrintToString(names(plan.passes)) << " were not all expected in "
      << testing::PrintToString(names(before.passes));
  const double samples = static_cast<double>(plan.samples);
  ASSERT_EQ(plan.stage_by_stage.size(), unfused.moved().size()) << testing::PrintToString(names(plan.stage_by_stage));
  double copied = 0, touched = 0;
  for (const LoaderPlan::Pass& stage : plan.stage_by_stage) {
    const auto counted = std::find_if(unfused.moved().begin(), unfused.moved().end(),
                                      [&](const Moved& moved) { return moved.name == stage.name; });
    ASSERT_NE(counted, unfused.moved().end()) << stage.name;
    EXPECT_EQ(stage.samples, counted->samples) << stage.name;
    EXPECT_DOUBLE_EQ(stage.bytes_in.value(), static_cast<double>(counted->in) / samples) << stage.name;
    EXPECT_DOUBLE_EQ(stage.bytes_out.value(), static_cast<double>(counted->out) / samples) << stage.name;
    copied += *stage.bytes_out;
    touched += *stage.bytes_in + *stage.bytes_out;
  }
  EXPECT_DOUBLE_EQ(plan.moved_stage_by_stage.value().copied, copied);
  EXPECT_DOUBLE_EQ(plan.moved_stage_by_stage.value().touched, touched);
  const bool fuses = plan.stage_by_stage.size() > plan.passes.size();  // Of stored pixels as they are nothing is.
  EXPECT_EQ(plan.moved.value().copied < copied, fuses);
  EXPECT_EQ(plan.moved.value().touched < touched, fuses);
}

std::vector<std::function<void(TransformOptions&)>> changes() {
  return {
      [](TransformOptions&) {},
      [](TransformOptions& t) {
        t.flip_probability = 0.5, t.mean = {0.4, 0.5, 0.6}, t.std = {0.2};
      },
      [](TransformOptions& t) { t.pad = 2, t.dtype = PixelType::bf16, t.mean = {0.1}; },
      [](TransformOptions& t) { t.pad = 1, t.flip_probability = 0.5, t.layout = PixelLayout::nhwc; },
      [](TransformOptions& t) { t.dtype = PixelType::u8, t.flip_probability = 1.0; },
      [](TransformOptions& t) { t.dtype = PixelType::u8, t.layout = PixelLayout::nhwc; },
  };
}

TEST(LoaderPlan, ImagesOfFilesHaveTheBytesOfSeparateStagesAndFewerAreMoved) {
  const TinyImages images{kShape};
  const std::shared_ptr<const Source> source = open_source(images.uri(), Split::train);
  for (const Crop crop : {Crop::center, Crop::random, Crop::random_resized}) {
    for (const auto& change : changes()) {
      for (const bool training : {true, false}) {
        DataOptions options = options_of(8, 2);
        options.transform.size = 24;
        options.transform.crop = crop;
        change(options.transform);
        expect_the_same_as_unfused(source, options, training);
      }
    }
  }
}

TEST(LoaderPlan, PixelsInMemoryHaveTheBytesOfSeparateStagesAndFewerAreMoved) {
  const auto source = std::make_shared<Pixels>();
  for (const std::int64_t size : {0, 16}) {
    for (const auto& change : changes()) {
      for (const bool training : {true, false}) {
        DataOptions options = options_of(8, 1);
        options.transform.size = size;
        change(options.transform);
        expect_the_same_as_unfused(source, options, training);
      }
    }
  }
}

TEST(LoaderPlan, NamesThePassesWithTheirBytes) {
  const TinyImages images{kShape};
  const std::shared_ptr<const Source> source = open_source(images.uri(), Split::train);
  DataOptions options = options_of(8, 2);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  options.transform.flip_probability = 0.5;
  options.transform.mean = {0.5};
  Loader loader{source, options, kSeed, true};
  const std::string fused = "resize, flip, to float, normalise, planes, into the batch";
  EXPECT_THAT(names(loader.explain().passes), ElementsAre("read", "decode the crop's region", fused));
  order(loader.epoch(0));
  const LoaderPlan plan = loader.explain();
  EXPECT_THAT(names(plan.passes), ElementsAre("read", "decode the crop's region", fused));
  EXPECT_EQ(pass_of(plan, fused).samples, 36);
  EXPECT_DOUBLE_EQ(pass_of(plan, fused).bytes_out.value(), 3.0 * 24 * 24 * sizeof(float));
  EXPECT_DOUBLE_EQ(pass_of(plan, fused).bytes_in.value(), pass_of(plan, "decode the crop's region").bytes_out.value());
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < source->size(); ++i) bytes += sample_bytes_of(*source, i);
  EXPECT_DOUBLE_EQ(pass_of(plan, "read").bytes_out.value(), static_cast<double>(bytes) / 36);
}

TEST(LoaderPlan, APadThatMovesAnImageTakesAPassOfItsOwnAfterTheResize) {
  const TinyImages images{kShape};
  DataOptions options = options_of(8, 0);
  options.transform.size = 24;
  options.transform.pad = 1;
  Loader loader{open_source(images.uri(), Split::train), options, kSeed, true};
  order(loader.epoch(0));
  const LoaderPlan plan = loader.explain();
  const std::string placed = "pad, crop, to float, planes, into the batch";
  const std::int64_t together = pass_of(plan, "resize, to float, planes, into the batch").samples;
  EXPECT_EQ(pass_of(plan, "resize").samples, pass_of(plan, placed).samples);
  EXPECT_EQ(together + pass_of(plan, placed).samples, 36);
  EXPECT_GT(together, 0);
  EXPECT_GT(pass_of(plan, placed).samples, together);  // One place of nine does not move it.
}

TEST(LoaderPlan, ACacheOfImagesIsFilledByAPassAndSparesOthers) {
  const TinyImages images{kShape};
  DataOptions options = options_of(8, 2);
  options.transform.size = 24;
  options.cache = Cache::decoded;
  options.cache_mib = 16;
  Loader loader{open_source(images.uri(), Split::train), options, kSeed, true};
  const auto expected = names(loader.explain().passes);
  order(loader.epoch(0));
  order(loader.epoch(1));
  const LoaderPlan plan = loader.explain();
  EXPECT_EQ(plan.samples, 72);
  for (const char* once : {"read", "decode the whole image", "copy into the cache"}) {
    EXPECT_EQ(pass_of(plan, once).samples, 36) << once;
  }
  EXPECT_TRUE(are_among(names(plan.passes), expected)) << testing::PrintToString(expected);
}

TEST(LoaderPlan, ACacheOfFilesIsFilledByAPassAndSparesReadingAlone) {
  const TinyImages images{kShape};
  const std::shared_ptr<const Source> source = open_source(images.uri(), Split::train);
  DataOptions options = options_of(8, 2);
  options.transform.size = 24;
  options.cache = Cache::encoded;
  options.cache_mib = 16;
  Loader loader{source, options, kSeed, true};
  const auto passes = ElementsAre("read", "decode the crop's region", "copy into the cache",
                                  "resize, to float, planes, into the batch");
  EXPECT_THAT(names(loader.explain().passes), passes);
  order(loader.epoch(0));
  order(loader.epoch(1));
  const LoaderPlan plan = loader.explain();
  EXPECT_THAT(names(plan.passes), passes);
  EXPECT_EQ(pass_of(plan, "read").samples, 36);
  EXPECT_EQ(pass_of(plan, "copy into the cache").samples, 36);
  EXPECT_EQ(pass_of(plan, "decode the crop's region").samples, 72);
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < source->size(); ++i) bytes += sample_bytes_of(*source, i);
  EXPECT_DOUBLE_EQ(pass_of(plan, "copy into the cache").bytes_in.value(), static_cast<double>(bytes) / 72);
  EXPECT_DOUBLE_EQ(pass_of(plan, "copy into the cache").bytes_out.value(), static_cast<double>(bytes) / 72);
  EXPECT_THAT(names(plan.stage_by_stage), testing::Contains("copy into the cache"));
}

TEST(LoaderPlan, AnIndexIsAPassOfItsOwnOnceItIsThere) {
  const TinyImages images{kShape};
  DataOptions options = options_of(8, 2);
  options.transform.size = 24;
  options.index = IndexUse::build;
  Loader loader{open_source(images.uri(), Split::train), options, kSeed, true};
  order(loader.epoch(0));
  const std::int64_t while_built = loader.statistics().index_hits;
  order(loader.epoch(1));
  const LoaderPlan plan = loader.explain();
  EXPECT_EQ(pass_of(plan, "decode the crop's region by its index").samples, while_built + 36);
  EXPECT_EQ(loader.statistics().index_hits, while_built + 36);
}

class PackPlans : public ScratchFolder {};

TEST_F(PackPlans, RowsThatACropDoesNotNeedAreNotRead) {
  const TinyImages images{kShape};
  const auto pack = folder_ / "photos.pack";
  ASSERT_TRUE(write_pack({.source = images.uri(), .out = pack, .form = PackForm::raw},
                         [](std::int64_t, std::int64_t) { return true; }));
  const std::shared_ptr<const Source> source = open_source("pack:" + pack.string(), Split::train);
  DataOptions options = options_of(8, 2);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  Loader loader{source, options, kSeed, true};
  EXPECT_EQ(loader.explain().passes.front().name, "read the crop's rows");
  DataOptions of_files = options;
  of_files.cache = Cache::encoded;  // There are none.
  EXPECT_EQ(names(Loader(source, of_files, kSeed, true).explain().passes), names(loader.explain().passes));
  order(loader.epoch(0));
  const LoaderPlan plan = loader.explain();
  double whole = 0;
  for (std::int64_t i = 0; i < source->size(); ++i) {
    const Payload image = source->capabilities().rows->outline(i);
    whole += 3.0 * image.height() * image.width() / 36;
  }
  EXPECT_EQ(plan.passes.front().samples, 36);
  EXPECT_LT(plan.passes.front().bytes_in.value(), whole);
  EXPECT_NEAR(plan.stage_by_stage.front().bytes_in.value(), whole, 1e-6);
}

}  // namespace
}  // namespace headrace
