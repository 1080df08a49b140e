// Packs of samples that are more than an image and a label.
#include <headrace/loader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <fstream>

#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "data/loader/testing.h"
#include "data/pack/detail/packed_image.h"
#include "data/pack/pack_build.h"
#include "data/source/fields_source.h"
#include "data/source/read_sample.h"
#include "data/store/pack_file.h"
#include "data/store/pack_writer.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

bool always(std::int64_t, std::int64_t) {
  return true;
}

class PackFields : public testing::Test {
 protected:
  static std::shared_ptr<const Source> source_of(const Schema& schema, std::int64_t size = 40) {
    return std::make_shared<FieldsSource>(schema, size, 9);
  }
  void write(const std::shared_ptr<const Source>& source, const PackProgress& go_on = always,
             bool append = false) const {
    write_pack({.source = "fields", .out = path_, .append = append, .threads = 2}, {{Split::train, source}}, go_on);
  }
  std::shared_ptr<const Source> packed() const { return open_source("pack:" + path_.string(), Split::train); }

  // Three samples as of format 2, whatever the schema; of one of them the table has the label after its own.
  void write_fields(const Source& source, const Schema& schema, std::int64_t other) const {
    const detail::FieldsPacker packer{schema};
    PackFileWriter writer{path_, 1, std::vector<std::string>(11), PackFileWriter::Mode::fresh, schema};
    for (std::int64_t i = 0; i < 3; ++i) {
      detail::PackedImage sample;
      packer.make(SampleReader{source}, i, sample);
      sample.row.label += i == other ? 1U : 0U;
      writer.add(sample.row, std::to_string(i), sample.bytes, sample.index);
    }
    writer.commit();
  }

  // Every byte of two epochs.
  static std::vector<std::uint64_t> loaded(const std::shared_ptr<const Source>& source, std::int64_t threads) {
    DataOptions options = options_of(7, threads);
    Loader loader{source, options, 3, true};
    auto all = digests(loader.epoch(0));
    const auto second = digests(loader.epoch(1));
    all.insert(all.end(), second.begin(), second.end());
    return all;
  }

  const TemporaryFolder temporary_;
  const std::filesystem::path path_ = temporary_.path() / "fields.pack";
  const Schema boxes_{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                       {.name = "labels", .dtype = DType::i64},
                       {.name = "caption", .shape = {kRagged}, .encoding = Encoding::text, .optional = true}}};
};

TEST_F(PackFields, ImagesAndLabelsAreOfFormatOneWhoeverGivesThem) {
  write(source_of(Schema::image_and_labels(5, 4, 3)));
  const std::string file = read_file(path_, 1 << 20);
  PackHead head;
  std::memcpy(&head, file.data(), sizeof head);
  EXPECT_EQ(head.format, 1U);
  const PackFile pack{path_};
  EXPECT_TRUE(pack.schema().empty());
  EXPECT_EQ(pack.rows()[0].at, sizeof(PackHead) + sizeof(PackRow) + 1);
  EXPECT_EQ(pack.rows()[0].size, 60U);
  EXPECT_EQ(pack.rows()[0].form, 0);
  EXPECT_EQ(loaded(packed(), 2), loaded(source_of(Schema::image_and_labels(5, 4, 3)), 0));
}

TEST_F(PackFields, EveryFieldOfAnySchemaComesBack) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto source = source_of(any_schema(seed));
    if (source->info().schema.is_image_and_labels()) continue;
    write(source);
    const auto from_pack = packed();
    EXPECT_EQ(from_pack->info().schema, source->info().schema);
    EXPECT_EQ(from_pack->size(), 40);
    EXPECT_EQ(loaded(from_pack, 3), loaded(source, 0)) << source->info().schema.text();
    std::filesystem::remove(path_);
  }
}

TEST_F(PackFields, AKilledWriterIsGoneOnWith) {
  const auto source = source_of(boxes_);
  write(source, [](std::int64_t done, std::int64_t) { return done < 16; });
  EXPECT_FALSE(std::filesystem::exists(path_));
  const auto partial = partial_pack(path_);
  std::filesystem::resize_file(partial, std::filesystem::file_size(partial) - 5);  // In its last sample.
  std::int64_t first_done = -1;
  write(source, [&](std::int64_t done, std::int64_t) {
    if (first_done < 0) first_done = done;
    return true;
  });
  EXPECT_EQ(first_done, 15);
  EXPECT_EQ(loaded(packed(), 2), loaded(source, 0));
  EXPECT_EQ(verify_pack(path_, always)->damaged, 0);
}

TEST_F(PackFields, OneThatWasKilledBeforeItsFieldsWereWrittenBeginsAnew) {
  const auto source = source_of(boxes_);
  write(source, [](std::int64_t done, std::int64_t) { return done < 16; });
  std::filesystem::resize_file(partial_pack(path_), sizeof(PackHead) + 20);
  write(source);
  EXPECT_EQ(loaded(packed(), 2), loaded(source, 0));
}

TEST_F(PackFields, OtherFieldsAreNotAdded) {
  write(source_of(boxes_, 20));
  const Schema others{{{.name = "x", .dtype = DType::f64}}};
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { write(source_of(others), always, /*append=*/true); }),
              AllOf(HasSubstr("boxes float32 (-1, 4)"), HasSubstr("x float64 ()")));
  write(source_of(boxes_, 30), always, /*append=*/true);
  EXPECT_EQ(packed()->size(), 30);
  std::filesystem::remove(path_);
  write(source_of(boxes_), [](std::int64_t done, std::int64_t) { return done < 16; });
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [&] { write(source_of(others), always, /*append=*/true); }),
              HasSubstr("was begun with other"));
}

TEST_F(PackFields, ADamagedSampleIsNamedAndNoOther) {
  const auto source = source_of(boxes_);
  write(source);
  const PackFile whole{path_};
  const PackRow row = whole.rows()[3];
  {
    std::fstream file{path_, std::ios::in | std::ios::out | std::ios::binary};
    file.seekp(static_cast<std::streamoff>(row.at) + 70);
    file.put('\x7f');
  }
  EXPECT_EQ(verify_pack(path_, always)->damaged, 1);
  DataOptions options = options_of(40, 1);
  options.on_corrupt = OnCorrupt::zero;
  Loader loader{packed(), options, 1, false};
  const auto batch = loader.epoch(0).next();
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(batch->valid()[i], i == 3 ? 0 : 1) << i;
}

TEST_F(PackFields, EveryCutAndEveryByteOfItsFrontIsRefused) {
  write(source_of(boxes_, 2));
  const std::string file = read_file(path_, 1 << 20);
  const std::size_t front = pack_front({}, boxes_).size();
  for (std::size_t at = 0; at < front; ++at) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] + 1);
    std::ofstream{path_, std::ios::binary} << damaged;
    EXPECT_THROW(packed(), Error) << at;
    std::ofstream{path_, std::ios::binary} << file.substr(0, at);
    EXPECT_THROW(packed(), Error) << at;
  }
}

TEST_F(PackFields, WhatAPackCannotHoldIsRefusedByName) {
  const auto refusal = [this](ErrorCode code, const std::shared_ptr<const Source>& source, PackForm form) {
    return error_of(code, [&] {
      write_pack({.source = "fields", .out = path_, .form = form}, {{Split::train, source}}, always);
    });
  };
  EXPECT_THAT(refusal(ErrorCode::unsupported, source_of(boxes_), PackForm::lz4),
              AllOf(HasSubstr("boxes float32 (-1, 4)"), HasSubstr("--form lz4")));
  write(source_of(boxes_));
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { unpack(path_, temporary_.path() / "out", always); }),
              HasSubstr("boxes float32 (-1, 4)"));
}

TEST_F(PackFields, AnImageOrLabelThatWouldMakeItUnreadableIsRefusedByName) {
  const std::array<std::uint8_t, 4> jpeg{0xFF, 0xD8, 0xFF, 0xE0};
  const std::vector<std::uint8_t> pixels(8 * 8 * 3);
  const auto refusal = [&](PackForm form, const std::function<void(Sample&)>& change) {
    const auto source = std::make_shared<FieldsSource>(Schema::image_and_labels(5, 4, 3), 20);
    source->on_read = [&](std::int64_t index, Sample& sample) {
      if (index == 7) change(sample);
    };
    const std::string text = error_of(ErrorCode::corrupt_data, [&] {
      write_pack({.source = "fields", .out = path_, .form = form}, {{Split::train, source}}, always);
    });
    EXPECT_FALSE(std::filesystem::exists(path_));
    std::filesystem::remove(partial_pack(path_));
    return text;
  };
  for (const PackForm form : {PackForm::stored, PackForm::raw, PackForm::lz4}) {
    EXPECT_THAT(refusal(form, [&](Sample& sample) { sample.image().set_pixels(pixels, 8, 8, 3); }),
                HasSubstr("fields[7]: field image: uint8 (8, 8, 3); wanted uint8 (5, 4, 3)"));
    EXPECT_THAT(refusal(form, [&](Sample& sample) { sample.image().set_pixels(pixels, 5, 4, 1); }),
                HasSubstr("fields[7]: field image: uint8 (5, 4, 1)"));
    EXPECT_THAT(refusal(form, [&](Sample& sample) { sample.image().set_file(jpeg); }),
                HasSubstr("fields[7]: field image: an encoded image"));
    EXPECT_THAT(refusal(form, [](Sample& sample) { sample.clear(); }), HasSubstr("fields[7]: field image: absent"));
    EXPECT_THAT(refusal(form, [](Sample& sample) { sample.set_label(-1); }),
                HasSubstr("fields[7]: label -1; wanted 0 to 9"));
    EXPECT_THAT(refusal(form, [](Sample& sample) { sample.set_label(10); }),
                HasSubstr("fields[7]: label 10; wanted 0 to 9"));
  }
}

TEST_F(PackFields, ASampleThatIsTooLargeIsRefusedBeforeMemoryIsTaken) {
  constexpr std::size_t kSize = std::size_t{kPackSampleBytesMax} + 1;
  void* const forbidden = ::mmap(nullptr, kSize, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  const Schema schema{{{.name = "x", .dtype = DType::u8, .shape = {kRagged}}}};
  const auto source = std::make_shared<FieldsSource>(schema, 20);
  source->on_read = [&](std::int64_t index, Sample& sample) {
    const std::span all{static_cast<const std::uint8_t*>(forbidden), kSize};
    if (index == 7) sample[0].set_bytes(all, std::array{static_cast<std::int64_t>(kSize)});
  };
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { write(source); }),
              AllOf(HasSubstr("fields[7]: fields of 1073741"), HasSubstr("takes 1073741824 of a sample"),
                    testing::Not(HasSubstr("max_sample_bytes"))));
  ::munmap(forbidden, kSize);
}

TEST_F(PackFields, ImagesAndLabelsAloneAreNoFieldsOfFormatTwo) {
  const Schema schema = Schema::image_and_labels(5, 4, 3);
  write_fields(*source_of(schema), schema, 0);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [this] { packed(); }), HasSubstr("images and labels alone"));
}

TEST_F(PackFields, ALabelThatIsNotThatOfTheTableIsRefusedByName) {
  const auto source = source_of(boxes_);
  write_fields(*source, boxes_, 1);
  const auto from_pack = packed();
  EXPECT_EQ(read_sample(*from_pack, 0)[1].number<std::int64_t>(), label_of(*source, 0));
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { read_sample(*from_pack, 1); }),
              AllOf(HasSubstr("fields.pack:1: its label is"), HasSubstr("the pack's table says")));
}

TEST_F(PackFields, MoreClassesThanAPackHoldsAreRefusedBeforeMemoryIsTaken) {
  class Many : public FieldsSource {
   public:
    explicit Many(const Schema& schema) : FieldsSource(schema, 20), many_(FieldsSource::info()) {
      many_.num_classes = std::int64_t{1} << 40;
    }
    const SourceInfo& info() const override { return many_; }

   private:
    SourceInfo many_;
  };
  EXPECT_THAT(error_of(ErrorCode::unsupported, [this] { write(std::make_shared<Many>(boxes_)); }),
              HasSubstr("1099511627776 classes; a pack takes at most 16777216"));
}

}  // namespace
}  // namespace headrace
