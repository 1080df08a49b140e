#include <headrace/error.h>
#include <headrace/loader.h>
#include <headrace/source.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>
#include <zlib.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/temporary_folder.h"
#include "data/loader/allocation_count.h"
#include "data/loader/testing.h"
#include "data/source/read_sample.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kFashion = "/usr/share/datasets/fashion-mnist";

class IdxSource : public testing::Test {
 protected:
  static std::string number(std::uint32_t value) {
    std::string bytes;
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xff);
    return bytes;
  }
  static std::string images(std::uint32_t count, std::uint32_t height, std::uint32_t width) {
    std::string bytes = number(0x803) + number(count) + number(height) + number(width);
    for (std::uint32_t i = 0; i < count * height * width; ++i) bytes += static_cast<char>(i * 7 + i / 256);
    return bytes;
  }
  static std::string labels(std::uint32_t count) {
    std::string bytes = number(0x801) + number(count);
    for (std::uint32_t i = 0; i < count; ++i) bytes += static_cast<char>(i % 3);
    return bytes;
  }
  static std::string gzip(const std::string& bytes) {
    z_stream zlib{};
    EXPECT_EQ(deflateInit2(&zlib, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    std::string out(deflateBound(&zlib, bytes.size()), '\0');
    zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    zlib.avail_in = static_cast<uInt>(bytes.size());
    zlib.next_out = reinterpret_cast<Bytef*>(out.data());
    zlib.avail_out = static_cast<uInt>(out.size());
    EXPECT_EQ(deflate(&zlib, Z_FINISH), Z_STREAM_END);
    out.resize(zlib.total_out);
    deflateEnd(&zlib);
    return out;
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream file(path(name), std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    ASSERT_TRUE(file.good());
  }
  void write_whole_pair() {
    write(kImages, images(5, 3, 4));
    write(kLabels, labels(5));
  }
  std::string uri() const { return "idx:" + folder_.string(); }

  // The message of the one Error that opening throws; its code must be `code`.
  std::string refusal(ErrorCode code, Split split = Split::train) {
    try {
      open_source(uri(), split);
    } catch (const Error& error) {
      EXPECT_EQ(to_string(error.code()), std::string(to_string(code))) << error.what();
      const std::string message = error.what();
      EXPECT_EQ(message.rfind("data: ", 0), 0U) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      return message;
    }
    return "nothing was thrown";
  }

  inline static const std::string kImages = "train-images-idx3-ubyte";
  inline static const std::string kLabels = "train-labels-idx1-ubyte";
  const TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
  Sample sample_;
};

TEST_F(IdxSource, GivesEverySampleAsStored) {
  write_whole_pair();
  const auto source = open_source(uri(), Split::train);
  EXPECT_EQ(source->size(), 5);
  EXPECT_EQ(stored_shape(source->info().schema).height, 3);
  EXPECT_EQ(stored_shape(source->info().schema).width, 4);
  EXPECT_EQ(stored_shape(source->info().schema).channels, 1);
  EXPECT_EQ(source->info().num_classes, 3);
  const std::string stored = images(5, 3, 4).substr(16);
  for (std::int64_t i = 0; i < 5; ++i) {
    source->read(i, sample_);
    const Payload& image = sample_.image();
    EXPECT_EQ(std::string(image.bytes.begin(), image.bytes.end()), stored.substr(static_cast<std::size_t>(i) * 12, 12));
    EXPECT_EQ(sample_.label(), i % 3);
    EXPECT_EQ(image.height() * 100 + image.width() * 10 + image.channels(), 341);
    EXPECT_EQ(sample_.bytes(), 0) << "everything lies in memory";
  }
  EXPECT_EQ(source->name(3), "train-images-idx3-ubyte[3]");
  EXPECT_THROW(source->read(5, sample_), Error);
  EXPECT_THROW(source->read(-1, sample_), Error);
}

TEST_F(IdxSource, TheFingerprintChangesWithTheDataAndOnlyWithIt) {
  write_whole_pair();
  const auto fingerprint = [this] { return open_source(uri(), Split::train)->info().fingerprint; };
  const std::uint64_t before = fingerprint();
  EXPECT_EQ(fingerprint(), before);
  std::filesystem::remove(path(kImages));
  write(kImages + ".gz", gzip(images(5, 3, 4)));
  EXPECT_EQ(fingerprint(), before);
  std::string changed = images(5, 3, 4);
  changed.back() ^= 1;
  write(kImages, changed);
  EXPECT_NE(fingerprint(), before);
  write(kImages, images(5, 3, 4));
  EXPECT_EQ(fingerprint(), before);
  std::string labelled = labels(5);
  labelled.back() ^= 1;
  write(kLabels, labelled);
  EXPECT_NE(fingerprint(), before);
}

TEST_F(IdxSource, GzipAndRawFilesOfAnyNameGiveTheSame) {
  const std::string image_bytes = images(5, 3, 4), label_bytes = labels(5);
  write(kImages + ".gz", gzip(image_bytes));
  write(kLabels + ".gz", label_bytes);  // A name may lie: somebody unpacked it in place.
  const auto source = open_source(uri(), Split::train);
  source->read(4, sample_);
  const auto pixels = sample_.image().bytes;
  EXPECT_EQ(std::string(pixels.begin(), pixels.end()), image_bytes.substr(16 + 48, 12));
  EXPECT_EQ(source->name(0), "train-images-idx3-ubyte.gz[0]");
}

TEST_F(IdxSource, ConcatenatedGzipMembersAreOneFile) {
  const std::string bytes = images(5, 3, 4);
  write(kImages + ".gz", gzip(bytes.substr(0, 30)) + gzip(bytes.substr(30)));
  write(kLabels, labels(5));
  const auto source = open_source(uri(), Split::train);
  EXPECT_EQ(read_sample(*source, 4).image().bytes.back(), static_cast<std::uint8_t>(bytes.back()));
}

TEST_F(IdxSource, TheTestSplitIsTheT10kPair) {
  write("t10k-images-idx3-ubyte", images(2, 1, 1));
  write("t10k-labels-idx1-ubyte", labels(2));
  EXPECT_EQ(open_source(uri(), Split::test)->size(), 2);
  EXPECT_THAT(refusal(ErrorCode::not_found), HasSubstr("train-images-idx3-ubyte"));
  EXPECT_THAT(refusal(ErrorCode::not_found, Split::val), HasSubstr("has no split val; there is test"));
  write("val-images-idx3-ubyte", images(3, 1, 1));
  EXPECT_THAT(refusal(ErrorCode::not_found, Split::val), HasSubstr("neither val-labels-idx1-ubyte nor"));
  write("val-labels-idx1-ubyte", labels(3));
  EXPECT_EQ(open_source(uri(), Split::val)->size(), 3);
}

TEST_F(IdxSource, RefusesUnknownSchemesAndMissingFolders) {
  const auto refusal_of = [](const std::string& uri, ErrorCode code) -> std::string {
    try {
      open_source(uri, Split::train);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refusal_of("lmdb:/x", ErrorCode::invalid_argument), AllOf(HasSubstr("'lmdb:/x'"), HasSubstr("idx:DIR")));
  EXPECT_THAT(refusal_of("", ErrorCode::invalid_argument), HasSubstr("idx:DIR"));
  EXPECT_THAT(refusal_of("id", ErrorCode::invalid_argument), HasSubstr("idx:DIR"));
  EXPECT_THAT(refusal_of("idx:", ErrorCode::invalid_argument), HasSubstr("names no folder"));
  EXPECT_THAT(refusal_of(uri() + "/absent", ErrorCode::not_found), HasSubstr("no folder " + folder_.string()));
  write("file", "x");
  EXPECT_THAT(refusal_of(uri() + "/file", ErrorCode::not_found), HasSubstr("is not a folder"));
}

TEST_F(IdxSource, NamesTheFileThatIsMissing) {
  EXPECT_THAT(refusal(ErrorCode::not_found),
              AllOf(HasSubstr("train-images-idx3-ubyte[.gz]"), HasSubstr(folder_.string())));
  write(kImages, images(5, 3, 4));
  EXPECT_THAT(refusal(ErrorCode::not_found), HasSubstr("train-labels-idx1-ubyte.gz"));
  write(kLabels, labels(5));
  std::filesystem::remove(path(kImages));
  EXPECT_THAT(refusal(ErrorCode::not_found), HasSubstr("train-images-idx3-ubyte.gz"));
}

TEST_F(IdxSource, AFolderOrAPipeInPlaceOfAFileIsUnreadable) {
  write_whole_pair();
  std::filesystem::remove(path(kImages));
  std::filesystem::create_directory(path(kImages));
  EXPECT_THAT(refusal(ErrorCode::io), AllOf(HasSubstr(kImages), HasSubstr("not a regular file")));
  std::filesystem::remove(path(kImages));
  ASSERT_EQ(mkfifo(path(kImages).c_str(), 0600), 0);  // Nobody writes to it: opening must not wait.
  EXPECT_THAT(refusal(ErrorCode::io), HasSubstr("not a regular file"));
  std::filesystem::remove(path(kImages));
  std::filesystem::create_symlink(kImages, path(kImages));
  EXPECT_THAT(refusal(ErrorCode::io), AllOf(HasSubstr("cannot open"), HasSubstr("symbolic links")));
}

TEST_F(IdxSource, EveryTruncationOfARawFileIsRefused) {
  write_whole_pair();
  const std::string whole = images(5, 3, 4);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(kImages, whole.substr(0, length));
    EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr(kImages), HasSubstr("truncated")));
  }
  write(kImages, whole);
  write(kLabels, labels(5).substr(0, 12));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr(kLabels), HasSubstr("promises 5 bytes")));
}

TEST_F(IdxSource, EveryTruncationOfAGzipFileIsRefused) {
  write(kLabels, labels(5));
  const std::string whole = gzip(images(5, 3, 4));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    write(kImages + ".gz", whole.substr(0, length));
    EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr(kImages), HasSubstr("truncated"))) << length;
  }
}

TEST_F(IdxSource, TrailingBytesAreRefused) {
  write_whole_pair();
  write(kImages, images(5, 3, 4) + "x");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr(kImages), HasSubstr("trailing bytes")));
  write(kImages, gzip(images(5, 3, 4) + "x"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("trailing bytes"));
  write(kImages, gzip(images(5, 3, 4)) + "x");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("trailing bytes after the gzip data"));
}

TEST_F(IdxSource, WrongMagicTellsBothNumbers) {
  write_whole_pair();
  write(kImages, labels(5));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr("0x00000801"), HasSubstr("0x00000803")));
  write(kImages, "<html>404 Not Found</html>");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr("wrong magic 0x3c68746d"), HasSubstr(kImages)));
}

TEST_F(IdxSource, CountsThatDifferAreBothTold) {
  write(kImages, images(5, 3, 4));
  write(kLabels, labels(4));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr("4 labels"), HasSubstr("5 images")));
}

TEST_F(IdxSource, EmptyAndImpossibleDimensionsAreRefused) {
  write(kLabels, labels(5));
  for (const auto& extents : {std::array<std::uint32_t, 3>{0, 3, 4}, {5, 0, 4}, {5, 3, 0}}) {
    write(kImages, number(0x803) + number(extents[0]) + number(extents[1]) + number(extents[2]));
    EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("a dimension is 0"));
  }
  write(kLabels, labels(0));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), AllOf(HasSubstr(kLabels), HasSubstr("a dimension is 0")));
}

TEST_F(IdxSource, AHeaderThatPromisesTooMuchIsRefusedBeforeAnythingIsAllocated) {
  write(kLabels, labels(5));
  const std::string huge = number(0x803) + number(0xffffffff) + number(0xffffffff) + number(0xffffffff);
  const std::string large = number(0x803) + number(60000) + number(1000) + number(1000);
  const std::string fitting = number(0x803) + number(5) + number(10000) + number(1000) + std::string(100, 'x');
  AllocationCount::reset_peak();
  write(kImages, huge);
  EXPECT_THAT(refusal(ErrorCode::out_of_memory), HasSubstr("more than 2^64 bytes"));
  write(kImages, large);
  EXPECT_THAT(refusal(ErrorCode::out_of_memory), HasSubstr("promises 60000000000 bytes"));
  write(kImages, fitting);
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("truncated: its header promises 50000000 bytes"));
  write(kImages, gzip(fitting));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("truncated: its header promises 50000000 bytes"));
  EXPECT_LT(AllocationCount::peak_growth(), 2 << 20);
}

TEST_F(IdxSource, AGzipBombIsInflatedNoFurtherThanItsHeaderPromises) {
  write(kLabels, labels(5));
  write(kImages, gzip(images(5, 3, 4) + std::string(50 << 20, '\0')));
  AllocationCount::reset_peak();
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("trailing bytes"));
  EXPECT_LT(AllocationCount::peak_growth(), 1 << 20);
}

// A header can be honest and its data still be gigabytes of nothing.
TEST_F(IdxSource, ImagesBeyondTheLimitsAreRefusedByTheHeader) {
  write(kLabels, labels(1));
  write(kImages, gzip(number(0x803) + number(1) + number(65'535) + number(65'535) + std::string(64 << 20, '\0')));
  AllocationCount::reset_peak();
  EXPECT_THAT(refusal(ErrorCode::unsupported), AllOf(HasSubstr(kImages), HasSubstr("65535 x 65535: 4294836225 pixels"),
                                                     HasSubstr("wanted at most 178956970 (data.max_pixels)")));
  EXPECT_LT(AllocationCount::peak_growth(), 1 << 20);
  write_whole_pair();
  EXPECT_EQ(open_source(uri(), Split::train, {.pixels = 12, .bytes = 12})->size(), 5);
  for (const auto& [limits, key] : {std::pair{SampleLimits{.pixels = 11, .bytes = 12}, "11 (data.max_pixels)"},
                                    std::pair{SampleLimits{.pixels = 12, .bytes = 11}, "11 (data.max_sample_bytes)"}}) {
    EXPECT_THAT(error_of(ErrorCode::unsupported, [&, &asked = limits] { open_source(uri(), Split::train, asked); }),
                HasSubstr(key));
  }
}

TEST_F(IdxSource, ABombWhoseLabelsDoNotFitItIsNotUnpacked) {
  write(kLabels, labels(5));
  write(kImages, gzip(number(0x803) + number(83'886) + number(28) + number(28) + std::string(83'886 * 784, '\0')));
  AllocationCount::reset_peak();
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("5 labels"));
  EXPECT_LT(AllocationCount::peak_growth(), 1 << 20);
}

// Damage of any kind either leaves a source that can be read to its end or is one Error; it costs no memory either way.
TEST_F(IdxSource, DamagedFilesAreReadOrRefusedButNeverCrash) {
  std::mt19937 random{20240229};
  const auto below = [&random](std::size_t bound) { return random() % bound; };
  int opened = 0, refused = 0;
  AllocationCount::reset_peak();
  for (int i = 0; i < 500; ++i) {
    std::string files[2] = {images(20, 6, 5), labels(20)};
    if (i % 2 == 0) files[0] = gzip(files[0]);
    if (i % 4 < 2) files[1] = gzip(files[1]);
    std::string& victim = files[below(2)];
    if (i % 5 == 0) {
      victim.resize(below(victim.size()));
    } else {
      const std::size_t reach = i % 3 == 0 ? std::min<std::size_t>(24, victim.size()) : victim.size();
      for (std::size_t flips = 1 + below(3); flips > 0; --flips) {
        victim[below(reach)] ^= static_cast<char>(1 << below(8));
      }
    }
    write(kImages, files[0]);
    write(kLabels, files[1]);
    try {
      const std::shared_ptr<const Source> source = open_source(uri(), Split::train);
      std::int64_t sum = 0;
      for (std::int64_t at = 0; at < source->size(); ++at) {
        source->read(at, sample_);
        const auto pixels = sample_.image().bytes;
        sum = std::accumulate(pixels.begin(), pixels.end(), sum);
        EXPECT_LT(sample_.label(), source->info().num_classes);
      }
      EXPECT_GT(sum, 0);
      DataOptions options = options_of(7, 0);
      options.on_corrupt = OnCorrupt::replace;
      Loader loader{source, options, 1, true};
      EXPECT_EQ(std::ssize(order(loader.epoch(0))), source->size());
      EXPECT_EQ(loader.statistics().corrupt, 0);
      ++opened;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("data: "));
      ++refused;
    }
  }
  EXPECT_EQ(opened + refused, 500);
  EXPECT_GT(opened, 50);    // A flipped pixel of a raw file cannot be told from a pixel.
  EXPECT_GT(refused, 150);  // Damage to gzip, headers and lengths can.
  EXPECT_LT(AllocationCount::peak_growth(), 3 << 20);
}

// Facts from Python: gzip.open(...).read() and numpy.
TEST(FashionMnist, DebiansFilesAreReadWhole) {
  const auto train = open_source("idx:" + kFashion, Split::train), test = open_source("idx:" + kFashion, Split::test);
  const auto facts = [](const Source& source) {
    std::vector<std::int64_t> per_class(static_cast<std::size_t>(source.info().num_classes));
    std::int64_t sum = 0, checksum = 0;
    Sample sample;
    for (std::int64_t i = 0; i < source.size(); ++i) {
      source.read(i, sample);
      ++per_class[static_cast<std::size_t>(sample.label())];
      const auto bytes = sample.image().bytes;
      const std::int64_t pixels = std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0});
      sum += pixels;
      checksum += pixels * (i % 97) + sample.label() * i;
    }
    const ImageShape shape = stored_shape(source.info().schema);
    return std::tuple{source.size(), shape.height, shape.width, per_class, sum, checksum};
  };
  const std::vector<std::int64_t> train_classes(10, 6000), test_classes(10, 1000);
  EXPECT_EQ(facts(*train), (std::tuple{std::int64_t{60000}, 28, 28, train_classes, std::int64_t{3431114169},
                                       std::int64_t{172935855392}}));
  EXPECT_EQ(facts(*test), (std::tuple{std::int64_t{10000}, 28, 28, test_classes, std::int64_t{573469082},
                                      std::int64_t{27728779057}}));
  EXPECT_EQ(train->name(137), "train-images-idx3-ubyte.gz[137]");
}

}  // namespace
}  // namespace headrace
