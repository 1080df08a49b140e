// An operation that reads other samples and changes a field, as a user would write one.
#include <headrace/loader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/transform.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/loader/testing.h"
#include "data/source/field_bytes.h"
#include "data/source/fields_source.h"
#include "data/source/process_source.h"
#include "data/source/read_sample.h"
#include "data/transform/plan.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Box = std::array<float, 4>;
using Bytes = std::vector<std::uint8_t>;

// ---- The operation ----

// Four images, the sample's own and three from anywhere in the epoch, as the quarters of one, with the boxes of all.
class Mosaic : public Operation {
 public:
  std::string_view name() const noexcept override { return "Mosaic"; }
  std::vector<std::string> fields() const override { return {"boxes"}; }
  bool draws() const noexcept override { return true; }
  std::size_t partners_max() const noexcept override { return 3; }
  ImageSpec schema(const ImageSpec& in) const override {
    return {{2 * in.size.height, 2 * in.size.width, in.size.channels}, in.dtype};
  }
  Drawn draw(SampleRandom& random, const Geometry&) const override {
    return {{random.uniform(), random.uniform(), random.uniform()}};
  }
  std::size_t partners(const Drawn& drawn, const EpochPlace& own, std::span<std::int64_t> positions) const override {
    for (std::size_t i = 0; i < 3; ++i) {
      positions[i] = static_cast<std::int64_t>(drawn.numbers[i] * static_cast<double>(own.positions));
    }
    return 3;
  }
  void apply(const OperationInput& in, const Drawn&, OperationOutput& out) const override {
    std::vector<std::uint8_t>& boxes = out.fields->buffer(0);
    boxes.clear();
    place(in.image, in.fields[0], 0, out.image, boxes);
    for (std::size_t i = 0; i < 3; ++i) {
      place(in.partners[i].image, in.partners[i].fields[0], static_cast<int>(i) + 1, out.image, boxes);
    }
    const std::int64_t extents[] = {static_cast<std::int64_t>(boxes.size() / sizeof(Box)), 4};
    (*out.fields)[0].set_bytes(boxes, extents);
  }

 private:
  static void place(const ImageView& image, const Payload& boxes, int quarter, const ImageTarget& target,
                    std::vector<std::uint8_t>& all) {
    const auto [height, width, channels] = image.image.size;
    const int y = quarter / 2 * height, x = quarter % 2 * width;
    for (int row = 0; row < height; ++row) {
      std::memcpy(target.at(y + row, x), image.at(row, 0), static_cast<std::size_t>(width * channels));
    }
    for (std::size_t at = 0; at < boxes.bytes.size(); at += sizeof(Box)) {
      Box box;
      std::memcpy(&box, boxes.bytes.data() + at, sizeof box);
      for (std::size_t i = 0; i < 4; ++i) box[i] += static_cast<float>(i % 2 == 0 ? x : y);
      const auto* const moved = reinterpret_cast<const std::uint8_t*>(&box);
      all.insert(all.end(), moved, moved + sizeof box);
    }
  }
};

// ---- What it is tried on ----

constexpr std::int64_t kSamples = 41;
constexpr std::uint64_t kSeed = 7;

Schema detection() {
  return Schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                 {.name = "image", .shape = {6, 5, 3}, .encoding = Encoding::image},
                 {.name = "labels", .dtype = DType::i64}}};
}

// Boxes of small whole numbers.
std::shared_ptr<FieldsSource> boxes_source(std::int64_t samples = kSamples) {
  auto source = std::make_shared<FieldsSource>(detection(), samples, 9);
  source->on_read = [](std::int64_t, Sample& sample) {
    std::vector<std::uint8_t>& buffer = sample.buffer(0);
    for (std::size_t at = 0; at < sample[0].bytes.size(); at += sizeof(float)) {
      const auto number = static_cast<float>(buffer[at] % 5);
      std::memcpy(&buffer[at], &number, sizeof number);
    }
  };
  return source;
}

// The same, and sample 3 cannot be read.
std::shared_ptr<FieldsSource> torn_source() {
  auto source = boxes_source();
  source->on_read = [sound = source->on_read](std::int64_t index, Sample& sample) {
    if (index == 3) fail(ErrorCode::corrupt_data, "data: fields[3]: torn");
    sound(index, sample);
  };
  return source;
}

const std::vector<TransformSpec>& crop() {
  static const std::vector<TransformSpec> list{transforms::RandomCrop{.size = {4}}};
  return list;
}

std::vector<std::shared_ptr<const Operation>> mosaic_list() {
  auto list = transform::operations_of(crop());
  list.push_back(std::make_shared<Mosaic>());
  return list;
}

Loader loader_of(const std::shared_ptr<const Source>& source, const DataOptions& options,
                 std::vector<std::shared_ptr<const Operation>> list = mosaic_list()) {
  return {source, options, kSeed, /*training=*/true, 0, nullptr, std::move(list)};
}

DataOptions plain(std::int64_t batch_size, std::int64_t threads) {
  DataOptions options = options_of(batch_size, threads);
  options.transform.layout = PixelLayout::nhwc;
  return options;
}

// ---- Promises ----

// By a plain loop: crops by themselves, put together.
TEST(Mosaic, ReadsOthersAndPlacesThemWithTheirBoxes) {
  const auto source = boxes_source();
  DataOptions bare = plain(1, 0);
  bare.transform.dtype = PixelType::u8;
  Loader in_order{source, bare, kSeed, true};
  const std::vector<std::int64_t> order = headrace::order(in_order.epoch(2));
  Loader loader = loader_of(source, plain(1, 0));
  EXPECT_EQ(loader.height(), 8);
  const Transform crops{detection(), crop(), PixelLayout::nhwc};
  std::set<std::int64_t> read;
  Epoch epoch = loader.epoch(2);
  for (const std::int64_t index : order) {
    const auto batch = epoch.next();
    ASSERT_EQ(batch->sample_indices()[0], index);
    const std::uint64_t key = transform::operation_key("Mosaic", 0);
    SampleRandom random{kSeed ^ key, 2, index};
    Bytes image(8 * 8 * 3), boxes;
    for (int quarter = 0; quarter < 4; ++quarter) {
      std::int64_t other = index;
      std::uint64_t seed = kSeed;
      if (quarter > 0) {
        other = order[static_cast<std::size_t>(random.uniform() * kSamples)];
        const std::string text = "partner:" + std::to_string(quarter - 1);
        seed ^= key ^ xxh3(std::as_bytes(std::span{text}));
        read.insert(other);
      }
      const Sample sample = read_sample(*source, other);
      std::vector<std::byte> cropped(crops.image_bytes());
      crops.apply(sample, {seed, 2, index}, cropped);
      for (int y = 0; y < 4; ++y) {
        std::memcpy(&image[static_cast<std::size_t>(((quarter / 2 * 4 + y) * 8 + quarter % 2 * 4) * 3)],
                    &cropped[static_cast<std::size_t>(y * 4 * 3)], 12);
      }
      for (std::size_t i = 0; i < sample[0].bytes.size() / sizeof(float); ++i) {
        float number;
        std::memcpy(&number, sample[0].bytes.data() + i * sizeof number, sizeof number);
        number += static_cast<float>(4 * (i % 2 == 0 ? quarter % 2 : quarter / 2));
        const auto* const moved = reinterpret_cast<const std::uint8_t*>(&number);
        boxes.insert(boxes.end(), moved, moved + sizeof number);
      }
    }
    const auto found = batch->field("image").bytes, values = batch->field("boxes").bytes;
    ASSERT_EQ(std::memcmp(found.data(), image.data(), image.size()), 0) << "sample " << index;
    ASSERT_EQ(values.size(), boxes.size());
    ASSERT_EQ(std::memcmp(values.data(), boxes.data(), boxes.size()), 0) << "sample " << index;
  }
  EXPECT_GT(read.size(), 30U);
}

TEST(Mosaic, SameBytesForAnyThreadsWithAnyCacheAndAfterResume) {
  std::vector<std::uint64_t> wanted;
  for (const int threads : {0, 1, 7}) {
    for (const Cache cache : {Cache::none, Cache::decoded}) {
      DataOptions options = plain(5, threads);
      options.cache = cache;
      Loader loader = loader_of(boxes_source(), options);
      for (int round = 0; round < 2; ++round) {
        const auto found = digests(loader.epoch(1));
        if (wanted.empty()) wanted = found;
        EXPECT_EQ(found, wanted) << threads << " threads";
      }
      Epoch epoch = loader.epoch(1);
      for (int i = 0; i < 4; ++i) static_cast<void>(epoch.next());
      const LoaderState state = loader.state();
      Loader resumed = loader_of(boxes_source(), options);
      resumed.restore(state);
      EXPECT_EQ(digests(resumed.next_epoch()), std::vector(wanted.begin() + 4, wanted.end()));
      while (epoch.next()) {
      }
    }
  }
}

// The ranks' batches taken in turns are those of one rank, whichever rank a partner belongs to.
TEST(Mosaic, SameBytesForAnyRanks) {
  const auto batches_of = [](std::int64_t rank, std::int64_t ranks) {
    DataOptions options = plain(5, 2);
    options.rank = rank, options.world_size = ranks;
    Loader loader = loader_of(boxes_source(60), options);
    std::vector<std::vector<std::byte>> all;
    Epoch epoch = loader.epoch(0);
    while (const auto batch = epoch.next()) {
      std::vector<std::byte>& bytes = all.emplace_back();
      for (const BatchField& field : batch->fields()) {
        const auto offsets = std::as_bytes(field.offsets);
        bytes.insert(bytes.end(), field.bytes.begin(), field.bytes.end());
        bytes.insert(bytes.end(), offsets.begin(), offsets.end());
      }
    }
    return all;
  };
  const auto wanted = batches_of(0, 1);
  ASSERT_EQ(wanted.size(), 12U);
  for (const std::size_t ranks : {2U, 3U}) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      const auto found = batches_of(static_cast<std::int64_t>(rank), static_cast<std::int64_t>(ranks));
      ASSERT_EQ(found.size(), wanted.size() / ranks);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(found[i] == wanted[i * ranks + rank]) << "batch " << i << " of rank " << rank << " of " << ranks;
      }
    }
  }
}

// A worker that has all samples in its payload: their number, where the schema and each of them begin and where the
// last ends, then these.
constexpr const char* kWorkerProgram = R"(
import mmap, os, socket, struct
control, slot = socket.socket(fileno=3), mmap.mmap(4, 0)
payload = os.pread(5, os.fstat(5).st_size, 0)
samples, = struct.unpack_from("<q", payload)
places = struct.unpack_from(f"<{samples + 2}q", payload, 8)

def give(part, kind, *numbers):  # Behind these numbers how many bytes there are.
    whole = payload[places[part]:places[part + 1]]
    slot[:len(whole)] = whole
    numbers += (len(whole),)
    try: control.send(struct.pack("<II7q", kind, 0, *numbers, *[0] * (7 - len(numbers))))
    except BrokenPipeError: os._exit(0)

give(0, 1, 2, samples, 10)
while message := control.recv(65):
    index = struct.unpack("<II7q", message)[2]
    give(index + 1, 3, index)
)";

std::vector<std::byte> payload_of(const Source& source) {
  const FieldBytes format{source.info().schema};
  std::vector<std::byte> parts = schema_bytes(source.info().schema);
  const std::int64_t front = (source.size() + 3) * static_cast<std::int64_t>(sizeof(std::int64_t));
  std::vector<std::int64_t> numbers{source.size(), front};
  for (std::int64_t index = 0; index < source.size(); ++index) {
    const Sample sample = read_sample(source, index);
    const std::size_t begin = parts.size();
    numbers.push_back(front + std::ssize(parts));
    parts.resize(begin + static_cast<std::size_t>(format.size(sample.payloads())));
    format.write(sample.payloads(), std::span{parts}.subspan(begin));
  }
  numbers.push_back(front + std::ssize(parts));
  const auto head = std::as_bytes(std::span{numbers});
  std::vector<std::byte> whole(head.begin(), head.end());
  whole.insert(whole.end(), parts.begin(), parts.end());
  return whole;
}

// A sample and its partners come from whichever worker is free.
TEST(Mosaic, SameBytesWithWorkerProcesses) {
  const auto source = boxes_source();
  Loader alone = loader_of(source, plain(5, 0));
  const auto wanted = digests(alone.epoch(1));
  const std::vector<std::byte> payload = payload_of(*source);
  for (const std::int64_t workers : {1, 7}) {
    const ProcessSourceOptions how{.name = "fields",
                                   .command = {"python3", "-I", "-S", "-c", kWorkerProgram},
                                   .workers = workers,
                                   .timeout = std::chrono::seconds(60)};
    const auto processes = std::make_shared<ProcessSource>(how, std::span{payload});
    Loader loader = loader_of(processes, plain(5, workers));
    EXPECT_EQ(digests(loader.epoch(1)), wanted) << workers << " workers";
    EXPECT_EQ(digests(loader.epoch(1, 4)), std::vector(wanted.begin() + 4, wanted.end())) << workers << " workers";
    EXPECT_EQ(processes->statistics().died, 0);
  }
}

TEST(Mosaic, PartnersAreReadAndAreNoSamples) {
  Loader loader = loader_of(boxes_source(), plain(5, 2));
  digests(loader.epoch(0));
  EXPECT_EQ(loader.statistics().samples, kSamples);
  EXPECT_EQ(loader.statistics().read, 4 * kSamples);
  EXPECT_EQ(loader.explain().samples, kSamples);
  Loader whole = loader_of(boxes_source(), plain(5, 0), {std::make_shared<Mosaic>()});
  const auto once = digests(whole.epoch(0));
  EXPECT_EQ(digests(whole.epoch(0)), once);
  EXPECT_EQ(whole.height(), 12);
}

class FarMosaic final : public Mosaic {
 public:
  std::size_t partners(const Drawn&, const EpochPlace& own, std::span<std::int64_t> positions) const override {
    positions[0] = own.positions;
    return 1;
  }
};

TEST(Mosaic, PartnerBeyondTheEpochIsNamed) {
  Loader loader = loader_of(boxes_source(), plain(5, 1), {std::make_shared<FarMosaic>()});
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, [&] { digests(loader.epoch(0)); }),
      AllOf(HasSubstr("fields["), HasSubstr("transform: Mosaic reads position 41; the epoch has positions 0 to 40")));
}

class TornMosaic final : public Mosaic {
 public:
  std::size_t partners(const Drawn&, const EpochPlace&, std::span<std::int64_t>) const override {
    throw std::runtime_error("no neighbours");
  }
};

TEST(Mosaic, IsNamedWhereItThrows) {
  Loader loader = loader_of(boxes_source(), plain(5, 1), {std::make_shared<TornMosaic>()});
  EXPECT_THAT(error_of(ErrorCode::internal, [&] { digests(loader.epoch(0)); }),
              AllOf(HasSubstr("fields["), HasSubstr("transform: Mosaic: no neighbours")));
}

TEST(Mosaic, ACorruptPartnerFollowsThePolicyOfTheSampleThatReadsIt) {
  const auto source = torn_source();
  DataOptions options = plain(1, 0);
  Loader failing = loader_of(source, options);
  std::string text;
  for (std::int64_t epoch = 0; epoch < 20 && text.find("Mosaic reads") == std::string::npos; ++epoch) {
    text = error_of(ErrorCode::corrupt_data, [&] { digests(failing.epoch(epoch)); });
  }
  EXPECT_THAT(text, HasSubstr("transform: Mosaic reads fields[3]: data: fields[3]: torn"));
  for (const OnCorrupt policy : {OnCorrupt::zero, OnCorrupt::replace}) {
    options.on_corrupt = policy;
    std::vector<std::uint64_t> wanted;
    for (const int threads : {0, 3}) {
      options.num_workers = threads;
      Loader loader = loader_of(source, options);
      const auto found = digests(loader.epoch(0));
      EXPECT_EQ(found.size(), static_cast<std::size_t>(kSamples));
      if (wanted.empty()) wanted = found;
      EXPECT_EQ(found, wanted);
      EXPECT_GT(loader.statistics().corrupt, 1);
    }
  }
}

// Those that follow its own place in the epoch: nothing about them is drawn.
class NextMosaic final : public Mosaic {
 public:
  std::size_t partners(const Drawn&, const EpochPlace& own, std::span<std::int64_t> positions) const override {
    for (std::size_t i = 0; i < 3; ++i) {
      positions[i] = (own.position + 1 + static_cast<std::int64_t>(i)) % own.positions;
    }
    return 3;
  }
};

TEST(Mosaic, WhatStandsInForASampleHasPartnersOfItsOwn) {
  DataOptions options = plain(1, 0);
  options.on_corrupt = OnCorrupt::replace;
  std::vector<std::uint64_t> wanted;
  for (const int threads : {0, 3}) {
    options.num_workers = threads;
    Loader loader = loader_of(torn_source(), options, {std::make_shared<NextMosaic>()});
    const auto found = digests(loader.epoch(0));
    EXPECT_EQ(found.size(), static_cast<std::size_t>(kSamples));
    if (wanted.empty()) wanted = found;
    EXPECT_EQ(found, wanted);
    EXPECT_GE(loader.statistics().corrupt, 4) << "it, and those that have it behind them";
  }
}

// The same for all.
class FixedMosaic final : public Mosaic {
 public:
  std::size_t partners(const Drawn&, const EpochPlace&, std::span<std::int64_t> positions) const override {
    std::fill(positions.begin(), positions.end(), 3);
    return 3;
  }
};

TEST(Mosaic, ACorruptPartnerOfAllSamplesEndsTheEpochInOneLine) {
  DataOptions options = plain(1, 0);
  options.shuffle = false;
  options.on_corrupt = OnCorrupt::replace;
  Loader loader = loader_of(torn_source(), options, {std::make_shared<FixedMosaic>()});
  EXPECT_THAT(
      error_of(ErrorCode::corrupt_data, [&] { digests(loader.epoch(0)); }),
      AllOf(HasSubstr("fields[0]: transform: Mosaic reads fields[3]: data: fields[3]: torn; the 32 samples drawn "
                      "in its place are corrupt too, the last: "),
            Not(HasSubstr("\n"))));
}

TEST(Mosaic, IsRefusedWhereItCannotWork) {
  DataOptions options = plain(5, 0);
  const auto without = std::make_shared<FieldsSource>(
      Schema{{{.name = "image", .shape = {6, 5, 3}, .encoding = Encoding::image}}}, kSamples);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { loader_of(without, options); }),
            "transform: Mosaic wants a field boxes beside the image; the samples have image uint8 (6, 5, 3) image");
  auto twice = mosaic_list();
  twice.push_back(std::make_shared<Mosaic>());
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { loader_of(boxes_source(), options, twice); }),
            "transform: Mosaic and Mosaic both read other samples; wanted one in a list");
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { Transform(detection(), mosaic_list()); }),
            "transform: Mosaic works on several samples, which a Loader alone has");
  options.scale_decode = true;
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [&] { loader_of(boxes_source(), options); }),
            "data: data.scale_decode is true, and Mosaic reads other samples; wanted one of the two");
}

}  // namespace
}  // namespace headrace
