#include <ATen/Context.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>
#include <headrace/source.h>

#include <cstring>
#include <fstream>
#include <new>
#include <optional>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "data/source/fields_source.h"
#include "torch/tensor/batch_tensor.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/safetensors.h"
#include "torch/tensor/translate.h"

// Read by AddressSanitizer where the test is built with it: an allocation beyond all bounds then fails as it does
// without it, instead of ending the process.
extern "C" const char* __asan_default_options();
extern "C" const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}

namespace headrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Named = std::vector<std::pair<std::string, at::Tensor>>;

class Folder : public ::testing::Test {
 protected:
  const TemporaryFolder temporary_;
  const fs::path path_ = temporary_.path();
};

// Sixteen images of 4 x 4 whose pixels are the sample's index.
class Squares final : public Source, KnownSamples {
 public:
  std::int64_t size() const override { return 16; }
  const SourceInfo& info() const override { return info_; }
  void read(std::int64_t index, Sample& sample) const override {
    sample.image().set_pixels(pixels_[static_cast<std::size_t>(index)], 4, 4, 1);
    sample.set_label(index);
  }
  std::string name(std::int64_t index) const override { return "square " + std::to_string(index); }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t index) const override { return index; }

 private:
  std::array<std::array<std::uint8_t, 16>, 16> pixels_ = [] {
    std::array<std::array<std::uint8_t, 16>, 16> pixels{};
    for (std::size_t i = 0; i < 16; ++i) pixels[i].fill(static_cast<std::uint8_t>(i));
    return pixels;
  }();
  const SourceInfo info_{.schema = Schema::image_and_labels(4, 4, 1), .num_classes = 16, .fingerprint = 16};
};

DataOptions plain_batches(std::int64_t batch_size) {
  DataOptions options;
  options.source = "squares";
  options.batch_size = batch_size;
  options.num_workers = 1;
  return options;
}

TEST(FieldTensor, IsAViewOfTheBatchAndKeepsItAlive) {
  at::Tensor images, labels;
  const void* address = nullptr;
  {
    Loader loader(std::make_shared<Squares>(), plain_batches(4), 1, /*training=*/false);
    Epoch epoch = loader.epoch(0);
    const Batch batch = *epoch.next();
    address = batch.field("image").bytes.data();
    images = field_tensor(batch, "image");
    labels = field_tensor(batch, "labels");
  }  // Batch, epoch and loader are gone; the tensors hold the memory.
  EXPECT_EQ(images.const_data_ptr(), address);
  EXPECT_EQ(images.sizes(), (std::vector<std::int64_t>{4, 1, 4, 4}));
  EXPECT_EQ(images.scalar_type(), at::kFloat);
  EXPECT_EQ(labels.scalar_type(), at::kLong);
  EXPECT_TRUE(labels.equal(at::arange(4, at::kLong)));
  EXPECT_TRUE(images.select(0, 3).isfinite().all().item<bool>());
}

TEST(FieldTensor, RaggedHoldsItsBatch) {
  const Schema schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                       {.name = "mask", .dtype = DType::i16, .shape = {kRagged, kRagged}},
                       {.name = "score", .dtype = DType::f64, .optional = true}}};
  at::Tensor boxes, mask, score;
  FieldShape of_boxes, of_mask, of_score;
  const void* address = nullptr;
  std::vector<std::int64_t> ends;
  {
    Loader loader(std::make_shared<FieldsSource>(schema, 16), plain_batches(8), 1, /*training=*/false);
    const Batch batch = *loader.epoch(0).next();
    address = batch.field(0).bytes.data();
    ends.assign(batch.field(0).offsets.begin(), batch.field(0).offsets.end());
    boxes = field_tensor(batch, 0), mask = field_tensor(batch, 1), score = field_tensor(batch, 2);
    of_boxes = field_shape(batch, 0), of_mask = field_shape(batch, 1), of_score = field_shape(batch, 2);
  }  // Batch, epoch and loader are gone; the tensors hold the memory.
  EXPECT_EQ(boxes.const_data_ptr(), address);
  EXPECT_EQ(boxes.sizes(), (std::vector<std::int64_t>{ends.back(), 4}));
  EXPECT_TRUE(of_boxes.offsets.equal(at::tensor(ends, at::kLong)));
  EXPECT_FALSE(of_boxes.shapes.defined() || of_boxes.present.defined());
  EXPECT_EQ(mask.scalar_type(), at::kShort);
  EXPECT_EQ(of_mask.shapes.sizes(), (std::vector<std::int64_t>{8, 2}));
  EXPECT_TRUE(of_mask.shapes.prod(1).cumsum(0).equal(of_mask.offsets.slice(0, 1)));
  EXPECT_EQ(score.sizes(), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(of_score.present.scalar_type(), at::kByte);
  EXPECT_TRUE(score.masked_select(of_score.present.eq(0)).eq(0).all().item<bool>());
}

TEST(FieldTensor, GivesTheMemoryBackToTheLoaderWithTheLastTensor) {
  DataOptions options = plain_batches(4);
  options.prefetch_batches = 1;  // Three batches in all: a fourth waits for one to come home.
  Loader loader(std::make_shared<Squares>(), options, 1, /*training=*/false);
  for (int pass = 0; pass < 3; ++pass) {
    Epoch epoch = loader.epoch(pass);
    at::Tensor last;
    while (const std::optional<Batch> batch = epoch.next()) last = field_tensor(*batch, "image");
    EXPECT_TRUE(last.defined());
  }
  EXPECT_EQ(loader.statistics().batches, 12);
}

TEST(FieldTensor, NamesTheFieldsThereAre) {
  Loader loader(std::make_shared<Squares>(), plain_batches(4), 1, /*training=*/false);
  Epoch epoch = loader.epoch(0);
  const Batch batch = *epoch.next();
  try {
    field_tensor(batch, "masks");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("image"));
  }
}

class Safetensors : public Folder {
 protected:
  fs::path file(const std::string& name = "a.safetensors") const { return path_ / name; }

  // A file of that header and data, byte by byte.
  fs::path crafted(const std::string& header, const std::string& data, std::optional<std::uint64_t> length = {}) const {
    const std::uint64_t stated = length.value_or(header.size());
    std::ofstream stream(file(), std::ios::binary);
    stream.write(reinterpret_cast<const char*>(&stated), 8);
    stream << header << data;
    return file();
  }

  static void expect_refused(const fs::path& path, const std::string& words) {
    try {
      read_safetensors(path);
      ADD_FAILURE() << "accepted; wanted: " << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(words));
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
};

TEST_F(Safetensors, ReturnsEveryTypeShapeAndText) {
  Named tensors;
  for (const auto type :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    tensors.emplace_back(c10::toString(type), at::randint(0, 100, {3, 5}, at::kInt).to(type));
  }
  tensors.emplace_back("bool", at::randint(0, 2, {7}, at::kInt).to(at::kBool));
  tensors.emplace_back("scalar", at::zeros({}, at::kLong).add_(42));
  tensors.emplace_back("empty", at::empty({0, 3}));
  tensors.emplace_back("quotes \"\n\xC3\xBC", at::randn({2}));
  write_safetensors(file(), tensors, {{"format", "test"}});

  const SafetensorsFile read = read_safetensors(file());
  EXPECT_EQ(read.metadata.at("format"), "test");
  EXPECT_EQ(read.metadata.at("xxh3").size(), 16);
  EXPECT_EQ(read_safetensors_metadata(file()), read.metadata);
  std::map<std::string, at::Tensor> by_name(read.tensors.begin(), read.tensors.end());
  ASSERT_EQ(by_name.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    ASSERT_EQ(by_name.count(name), 1) << name;
    EXPECT_EQ(by_name[name].scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(by_name[name].equal(tensor)) << name;
  }
}

TEST_F(Safetensors, StoresRowMajorWhateverTheStrides) {
  const at::Tensor weight = at::randn({4, 3, 2, 2});
  write_safetensors(file("a"), {{"weight", weight}}, {});
  write_safetensors(file("b"), {{"weight", weight.contiguous(at::MemoryFormat::ChannelsLast)}}, {});
  EXPECT_EQ(read_file(file("a"), 10'000), read_file(file("b"), 10'000));
  const at::Tensor transposed = at::randn({3, 4}).t();
  write_safetensors(file("c"), {{"t", transposed}}, {});
  EXPECT_TRUE(read_safetensors(file("c")).tensors[0].second.equal(transposed));
}

TEST_F(Safetensors, BeginsEachTensorAtAMultipleOfItsElementSize) {
  write_safetensors(file(),
                    {{"bytes", at::zeros({3}, at::kByte)},
                     {"halves", at::zeros({3}, at::kHalf)},
                     {"longs", at::zeros({1}, at::kLong)}},
                    {});
  const SafetensorsFile read = read_safetensors(file());
  EXPECT_EQ(read.tensors[0].first, "longs");
  EXPECT_EQ(read.tensors[1].first, "halves");
  EXPECT_EQ(read.tensors[2].first, "bytes");
}

TEST_F(Safetensors, RefusesTwoTensorsOfOneNameAndTypesItDoesNotKnow) {
  const at::Tensor tensor = at::zeros({1});
  EXPECT_THROW(write_safetensors(file(), {{"a", tensor}, {"a", tensor}}, {}), Error);
  EXPECT_THROW(write_safetensors(file(), {{"a", at::zeros({1}, at::kComplexFloat)}}, {}), Error);
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(Safetensors, NamesAMissingFile) {
  try {
    read_safetensors(file("none"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("none"));
  }
}

TEST_F(Safetensors, EveryFlippedBitOfTheDataIsNoticed) {
  write_safetensors(file(), {{"a", at::randn({8})}}, {});
  const std::string whole = read_file(file(), 10'000);
  for (std::size_t byte = whole.size() - 32; byte < whole.size(); ++byte) {
    std::string damaged = whole;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 1);
    write_file(file("damaged"), damaged);
    expect_refused(file("damaged"), "checksum");
  }
}

TEST_F(Safetensors, EveryTruncationIsNoticed) {
  write_safetensors(file(), {{"a", at::randn({4})}, {"b", at::zeros({2}, at::kLong)}}, {{"k", "v"}});
  const std::string whole = read_file(file(), 10'000);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    write_file(file("cut"), std::string_view(whole).substr(0, size));
    expect_refused(file("cut"), "");
  }
}

TEST_F(Safetensors, RefusesHostileHeadersInOneLineThatNamesTheFile) {
  const auto one = [](const std::string& entry) { return "{\"t\":" + entry + "}"; };
  const std::string eight(8, 'x');
  expect_refused(crafted("{}", "", 1ULL << 62), "header of");
  expect_refused(crafted("{}", "", ~0ULL), "header of");
  expect_refused(crafted("{}", "x"), "1 bytes of data, the tensors take 0");
  expect_refused(crafted("[]", ""), "no JSON object");
  expect_refused(crafted("{\"a\"", ""), "no JSON");
  expect_refused(crafted("{\"\xFF\":1}", ""), "no JSON");
  expect_refused(crafted(std::string(200'000, '['), ""), "no JSON");
  expect_refused(crafted("{\"__metadata__\":[]}", ""), "__metadata__");
  expect_refused(crafted("{\"__metadata__\":{\"a\":1}}", ""), "__metadata__");
  expect_refused(crafted(one("1"), eight), "wanted dtype");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[2]})"), eight), "wanted dtype");
  expect_refused(crafted(one(R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})"), eight), "unknown dtype \"F33\"");
  expect_refused(crafted(one(R"({"dtype":7,"shape":[2],"data_offsets":[0,8]})"), eight), "unknown dtype");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})"), eight), "shape");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), eight), "whole number");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})"), eight), "whole number");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]})"), eight),
                 "whole number");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8]})"), eight),
                 "too large");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]})"), ""),
                 "too large");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), eight), "needs 12 bytes");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), eight), "data_offsets");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,16]})"), eight), "do not lie in 8 bytes");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,4,8]})"), eight), "data_offsets");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})"), eight), "hole");
  expect_refused(crafted(one(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})"), eight), "the tensors take 4");
  expect_refused(crafted(one(R"({"dtype":"BOOL","shape":[8],"data_offsets":[0,8]})"), eight), "BOOL");
  expect_refused(crafted(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                         eight),
                 "overlap");
  expect_refused(crafted(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                         R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                         eight),
                 "twice");
  expect_refused(crafted(one("{\"dtype\":\"F32\",\"shape\":[" +
                             std::string(129, '1').replace(1, 128,
                                                           [] {
                                                             std::string ones;
                                                             for (int i = 0; i < 64; ++i) ones += ",1";
                                                             return ones;
                                                           }()) +
                             "],\"data_offsets\":[0,4]}"),
                         "abcd"),
                 "at most 64");
  expect_refused(crafted("{\"new\\nline\":{\"dtype\":\"X\",\"shape\":[],\"data_offsets\":[0,0]}}", ""), "new\\nline");
}

TEST(ComputeThreads, ApplyAtOnceAndReportWhatIsInForce) {
  const std::int64_t before = compute_threads();
  for (const std::int64_t threads : {2, 1}) {
    const Applied applied = apply_compute_threads(threads);
    EXPECT_EQ(applied.key, "compute.intra_op_threads");
    EXPECT_EQ(applied.requested, std::to_string(threads));
    EXPECT_EQ(applied.applied, std::to_string(compute_threads()));
    EXPECT_EQ(compute_threads(), threads) << applied.reason;
  }
  EXPECT_THROW(apply_compute_threads(0), Error);
  apply_compute_threads(before);
}

template <class Thrower>
Error translated(const Thrower& thrower) {
  try {
    thrower();
  } catch (...) {
    return translate(std::current_exception());
  }
  return {ErrorCode::internal, "nothing was thrown"};
}

TEST(Translate, GivesForeignExceptionsAClassAndOneLine) {
  const Error own = translated([] { fail(ErrorCode::numerics, "train: loss is nan"); });
  EXPECT_EQ(own.code(), ErrorCode::numerics);
  EXPECT_STREQ(own.what(), "train: loss is nan");

  const Error shapes = translated([] { return at::add(at::zeros({2}), at::zeros({3})); });
  EXPECT_EQ(shapes.code(), ErrorCode::internal);
  EXPECT_THAT(shapes.what(), HasSubstr("torch: The size of tensor a"));
  EXPECT_EQ(std::string(shapes.what()).find('\n'), std::string::npos);

  const Error index = translated([] { return at::zeros({2}).select(0, 5); });
  EXPECT_EQ(index.code(), ErrorCode::invalid_argument);

  const Error memory = translated([] { return at::empty({1LL << 50}); });
  EXPECT_EQ(memory.code(), ErrorCode::out_of_memory) << memory.what();

  EXPECT_EQ(translated([] { throw std::bad_alloc(); }).code(), ErrorCode::out_of_memory);
  EXPECT_EQ(translated([] { throw std::runtime_error("a\nb"); }).code(), ErrorCode::internal);
  EXPECT_STREQ(translated([] { throw std::runtime_error("a\nb"); }).what(), "system: a");
  EXPECT_EQ(translated([] { throw 7; }).code(), ErrorCode::internal);
}

}  // namespace
}  // namespace headrace
