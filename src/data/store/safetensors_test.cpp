#include "data/store/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "core/base/error_of.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

class Safetensors : public testing::Test {
 protected:
  // A file of two tensors; `header` is changed before it is written.
  void write(
      const std::string& bytes, const std::function<void(Json& header)>& change = [](Json&) {}) const {
    Json header{{"__metadata__", {{"xxh3", hex(xxh3(std::as_bytes(std::span(bytes))))}}},
                {"b", {{"dtype", "U8"}, {"shape", {2, 1}}, {"data_offsets", {8, 10}}}},
                {"a", {{"dtype", "F32"}, {"shape", {2}}, {"data_offsets", {0, 8}}}}};
    change(header);
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    std::ofstream file(path_, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text << bytes;
  }
  SafetensorsReader open() const { return SafetensorsReader(path_, "the file"); }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "x.safetensors";
};

TEST_F(Safetensors, EntriesComeInTheFilesOrderAndBytesInPieces) {
  write("0123456789");
  SafetensorsReader reader = open();
  ASSERT_EQ(reader.entries().size(), 2U);
  EXPECT_EQ(reader.entries()[0].name, "a");
  EXPECT_EQ(reader.entries()[0].dtype, DType::f32);
  EXPECT_EQ(reader.entries()[1].shape, (Shape{2, 1}));
  EXPECT_EQ(reader.tensor_bytes(), 10);
  std::array<char, 10> bytes{};
  const std::span all = std::as_writable_bytes(std::span(bytes));
  for (const auto& piece : {all.first(3), all.subspan(3, 6), all.last(1)}) reader.read(piece);
  EXPECT_EQ(std::string(bytes.data(), bytes.size()), "0123456789");
  EXPECT_NO_THROW(reader.check_read());
}

TEST_F(Safetensors, AChecksumThatDiffersIsAnErrorOnceAllIsRead) {
  write("0123456789", [](Json& header) { header["__metadata__"]["xxh3"] = "0123456789abcdef"; });
  SafetensorsReader reader = open();
  std::array<std::byte, 10> bytes{};
  reader.read(bytes);
  EXPECT_THAT(error_of(ErrorCode::corrupt_data, [&] { reader.check_read(); }),
              StartsWith("the file: checksum of the tensors is "));
}

TEST_F(Safetensors, AHeaderThatDoesNotFitTheFileIsRefusedWithTheReason) {
  const auto refused = [this](const std::function<void(Json&)>& change) {
    write("0123456789", change);
    const std::string error = error_of(ErrorCode::corrupt_data, [this] { open(); });
    EXPECT_THAT(error, StartsWith("the file: "));
    return error;
  };
  EXPECT_THAT(refused([](Json& header) { header["b"]["data_offsets"] = {7, 9}; }), HasSubstr("overlap"));
  EXPECT_THAT(refused([](Json& header) {
                header["b"]["data_offsets"] = {8, 11};
              }),
              HasSubstr("do not lie in 10 bytes"));
  EXPECT_THAT(refused([](Json& header) { header["b"]["shape"] = {3}; }), HasSubstr("needs 3 bytes"));
  EXPECT_THAT(refused([](Json& header) { header["b"]["dtype"] = "F8"; }), HasSubstr("unknown dtype \"F8\""));
  EXPECT_THAT(refused([](Json& header) { header.erase("b"); }), HasSubstr("10 bytes of data, the tensors take 8"));
  std::filesystem::remove(path_);
  EXPECT_THAT(error_of(ErrorCode::not_found, [this] { open(); }), HasSubstr("cannot be opened"));
}

TEST_F(Safetensors, TheHeadersChecksumCountsAllButTheChecksumsWhateverTheOrder) {
  const SafetensorsEntry a{.name = "a", .dtype = DType::f32, .shape = {2}};
  const SafetensorsEntry b{.name = "b", .dtype = DType::u8, .shape = {2, 1}};
  const std::string plain = header_checksum({{"step", "7"}}, {a, b});
  EXPECT_EQ(header_checksum({{"step", "7"}, {kTensorsChecksum, "x"}, {kHeaderChecksum, "y"}}, {b, a}), plain);
  EXPECT_NE(header_checksum({{"step", "8"}}, {a, b}), plain);
  SafetensorsEntry other = b;
  other.dtype = DType::i8;
  EXPECT_NE(header_checksum({{"step", "7"}}, {a, other}), plain);
  other = b;
  other.shape = {1, 2};
  EXPECT_NE(header_checksum({{"step", "7"}}, {a, other}), plain);
}

}  // namespace
}  // namespace headrace
