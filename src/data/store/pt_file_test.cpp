// What torch.save itself writes is read by tests/pt_weights_test.py; here are the files that it never writes.
#include "data/store/pt_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "data/store/pt_file_testing.h"
#include "data/store/zip_records.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kStorage(16, 'x');  // Of four float32.

std::string archive_of(const std::string& pickle) {
  return torch_archive(pickle, {{"data/0", kStorage}});
}

std::vector<PtEntry> read(const std::string& file) {
  return pt_entries(file, "the file");
}

std::string refusal(ErrorCode code, const std::string& file) {
  std::string message = error_of(code, [&] { read(file); });
  EXPECT_THAT(message, StartsWith("the file: "));
  EXPECT_EQ(message.find('\n'), std::string::npos);
  return message;
}

std::string refused_pickle(ErrorCode code, const std::string& pickle) {
  return refusal(code, archive_of(pickle));
}

std::string refused_tensor(ErrorCode code, const PickledTensor& tensor) {
  return refused_pickle(code, pickled_tensor("w", tensor));
}

std::string opcodes(const std::string& bytes) {
  return std::string("\x80\x02", 2) + bytes + ".";
}

TEST(PtFile, ATensorIsNamedTypedAndPlaced) {
  const std::string file = archive_of(pickled_tensor("w", {.offset = 1, .size = {3}, .stride = {1}}));
  const std::vector<PtEntry> entries = read(file);
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].name, "w");
  EXPECT_EQ(entries[0].dtype, DType::f32);
  EXPECT_EQ(entries[0].shape, Shape{3});
  EXPECT_EQ(entries[0].strides, Shape{1});
  EXPECT_EQ(entries[0].bytes, 12U);
  EXPECT_EQ(entries[0].begin, file.find(kStorage) + 4);
}

TEST(PtFile, ATensorMayRepeatElementsOrHaveNone) {
  EXPECT_EQ(read(archive_of(pickled_tensor("w", {.size = {1000000}, .stride = {0}})))[0].bytes, 4U);
  EXPECT_EQ(read(archive_of(pickled_tensor("w", {.size = {0, 9}, .stride = {9, 1}})))[0].bytes, 0U);
  EXPECT_EQ(read(archive_of(pickled_tensor("w", {.size = {}, .stride = {}})))[0].bytes, 4U);
}

TEST(PtFile, AGlobalOfAnotherNameIsNamedAndNotLookedUp) {
  const std::vector<std::pair<std::string, std::string>> globals{{"os", "system"},
                                                                 {"builtins", "eval"},
                                                                 {"__builtin__", "exec"},
                                                                 {"torch", "load"},
                                                                 {"torch", "ComplexFloatStorage"},
                                                                 {"torch.storage", "UntypedStorage"},
                                                                 {"__main__", "Net"},
                                                                 {"torch._utils", "_rebuild_qtensor"}};
  for (const auto& [module, name] : globals) {
    const std::string call = pickled_global(module, name) + pickled("ls") + "\x85R";
    EXPECT_THAT(refused_pickle(ErrorCode::unsupported, pickled_dict("w", call)),
                HasSubstr("asks for \"" + module + "." + name + "\""));
  }
  // By two texts, as protocol 4 writes it; as INST; and as what makes the whole file.
  EXPECT_THAT(refused_pickle(ErrorCode::unsupported, opcodes(pickled("os") + pickled("system") + "\x93")),
              HasSubstr("\"os.system\""));
  EXPECT_THAT(refused_pickle(ErrorCode::unsupported, opcodes("(" + pickled("ls") + "ios\nsystem\n")),
              HasSubstr("\"os.system\""));
  // A name of any length and of any bytes stays on one line.
  EXPECT_LT(refused_pickle(ErrorCode::unsupported, opcodes(pickled_global(std::string(100000, '\x01'), "x"))).size(),
            5000U);
}

TEST(PtFile, OpcodesThatMakeObjectsAreRefused) {
  const std::string allowed = pickled_global("collections", "OrderedDict");
  EXPECT_THAT(refused_pickle(ErrorCode::unsupported, opcodes(allowed + ")\x81")), HasSubstr("NEWOBJ"));
  EXPECT_THAT(refused_pickle(ErrorCode::unsupported, opcodes("\x82\x01")), HasSubstr("EXT1"));
  EXPECT_THAT(refused_pickle(ErrorCode::unsupported, opcodes("Pkey\n")), HasSubstr("PERSID"));
  EXPECT_THAT(refused_pickle(ErrorCode::unsupported, opcodes("N2")), HasSubstr("0x32"));  // DUP
  EXPECT_THAT(refused_pickle(ErrorCode::unsupported, opcodes("N}b")), HasSubstr("sets attributes of None"));
}

TEST(PtFile, LengthsAreComparedWithWhatIsLeft) {
  const std::string huge = "X" + little_endian(std::uint32_t{0xffffffff});
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data, opcodes(huge + "abc")), HasSubstr("wanted 4294967295"));
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data, ""), HasSubstr("cut off"));
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data, std::string("\x80\x02}", 3)), HasSubstr("cut off"));
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data,
                             "\x80\x02"
                             "cos"),
              HasSubstr("within a name"));
  const std::string whole = archive_of(pickled_tensor("w", {}));
  for (std::size_t size = 0; size < whole.size(); ++size) {
    error_of(ErrorCode::corrupt_data, [&] { read(whole.substr(0, size)); });
  }
}

TEST(PtFile, AStackThatRunsEmptyIsAnError) {
  for (const std::string code :
       {"s", "u", "t", "a", "e", "R", "b", "Q", "(s", "\x85", "\x86", "\x87", "q\x01", "((t"}) {
    refused_pickle(ErrorCode::corrupt_data, opcodes(code));
  }
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data, opcodes("h\x07")), HasSubstr("value 7"));
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data, opcodes("NN")), HasSubstr("2 values"));
}

// Numbers of the memo, repetitions and depth cost what they take in the file, and what holds itself is not followed.
TEST(PtFile, NeitherMemoNorRecursionNorDepthMultiplies) {
  const std::string put = "r" + little_endian(std::uint32_t{0xffffffff});
  EXPECT_THAT(refused_pickle(ErrorCode::invalid_argument, opcodes("]" + put)), HasSubstr("holds a list"));
  std::string bomb = "]q" + std::string(1, '\0');
  for (int level = 1; level < 60; ++level) {  // Each list holds the one before ten times.
    bomb += "](";
    for (int i = 0; i < 10; ++i) bomb += "h" + std::string(1, static_cast<char>(level - 1));
    bomb += "eq" + std::string(1, static_cast<char>(level));
  }
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data, opcodes(bomb)), HasSubstr("60 values"));
  EXPECT_THAT(refused_pickle(ErrorCode::invalid_argument,
                             opcodes("]q" + std::string(1, '\0') + "h" + std::string(1, '\0') + "a")),
              HasSubstr("holds a list"));
  EXPECT_THAT(refused_pickle(ErrorCode::invalid_argument, opcodes(")" + std::string(1000000, '\x85'))),
              HasSubstr("holds a tuple"));
  EXPECT_THAT(refused_pickle(ErrorCode::out_of_memory, opcodes(std::string(5000000, 'N'))),
              HasSubstr("has more than 4194304 values"));
  EXPECT_THAT(refused_pickle(ErrorCode::out_of_memory, opcodes("N" + std::string(5000000, '\x94'))),  // MEMOIZE
              HasSubstr("stores more than 4194304 values"));
}

TEST(PtFile, ATensorThatIsNamedVeryOftenIsCountedFirst) {
  std::string again;
  for (int i = 0; i < 1 << 18; ++i) again += std::string("h\0h\1", 4);
  const std::string first = pickled("w") + std::string("q\0", 2) + pickled_value({}) + "q\x01";
  EXPECT_THAT(refused_pickle(ErrorCode::out_of_memory, opcodes("}(" + first + again + "u")),
              HasSubstr("262145 tensors, wanted at most 262144"));
}

TEST(PtFile, TensorsBeyondTheirStorageAreRefused) {
  const auto refused = [](const PickledTensor& tensor) { return refused_tensor(ErrorCode::corrupt_data, tensor); };
  EXPECT_THAT(refused({.size = {5}}), HasSubstr("of a storage that has 4"));
  EXPECT_THAT(refused({.offset = 1}), HasSubstr("4 elements from element 1 on"));
  EXPECT_THAT(refused({.size = {2}, .stride = {4}}), HasSubstr("5 elements"));
  EXPECT_THAT(refused({.size = {-1}}), HasSubstr("whole number of at least 0"));
  EXPECT_THAT(refused({.stride = {-1}}), HasSubstr("stride"));
  EXPECT_THAT(refused({.offset = -1}), HasSubstr("offset"));
  EXPECT_THAT(refused({.length = -1}), HasSubstr("length"));
  EXPECT_THAT(refused({.length = 5}), HasSubstr("the file has 16 bytes"));
  EXPECT_THAT(refused({.storage_class = "DoubleStorage"}), HasSubstr("4 elements of 8 bytes"));
  EXPECT_THAT(refused({.key = "1"}), HasSubstr("lacks its storage \"1\""));
  EXPECT_THAT(refused({.key = "../data.pkl"}), HasSubstr("lacks"));
  EXPECT_THAT(refused({.size = {2, 2}}), HasSubstr("2 sizes and 1 strides"));
  const std::int32_t large = 2147483647;
  EXPECT_THAT(refused({.size = {large, large, large}, .stride = {0, 0, 0}}), HasSubstr("too large"));
  EXPECT_THAT(refused({.size = {large, large}, .stride = {1, 1}}), HasSubstr("too large"));
  EXPECT_THAT(refused({.size = {2, 2}, .stride = {large, large}}), HasSubstr("of a storage that has 4"));
  EXPECT_THAT(refused({.size = std::vector<std::int32_t>(65, 1), .stride = std::vector<std::int32_t>(65, 1)}),
              HasSubstr("65 dimensions"));
}

TEST(PtFile, AStorageThatIsNoneIsRefused) {
  const std::string rest = pickled(0) + pickled_tuple({4}) + pickled_tuple({1}) + "\x89" +
                           pickled_global("collections", "OrderedDict") + ")RtR";
  const std::string function = pickled_global("torch._utils", "_rebuild_tensor_v2") + "(";
  const auto refused = [&](const std::string& storage) {
    return refused_pickle(ErrorCode::corrupt_data, pickled_dict("w", function + storage + rest));
  };
  EXPECT_THAT(refused("N"), HasSubstr("lies in None"));
  EXPECT_THAT(refused("NQ"), HasSubstr("no storage"));
  EXPECT_THAT(refused(")Q"), HasSubstr("no storage"));
  EXPECT_THAT(refused(pickled_tuple({1, 2, 3, 4, 5}) + "Q"), HasSubstr("no storage"));
}

TEST(PtFile, WhatIsNoDictOfTensorsIsNamed) {
  const auto refused = [](const std::string& pickle) { return refused_pickle(ErrorCode::invalid_argument, pickle); };
  EXPECT_THAT(refused(opcodes(pickled_value({}))), HasSubstr("holds a tensor, wanted a dict"));
  EXPECT_THAT(refused(opcodes("N")), HasSubstr("holds None"));
  EXPECT_THAT(refused(pickled_dict("epoch", pickled(3))), HasSubstr("its keys: \"epoch\""));
  EXPECT_THAT(refused(opcodes("}(" + pickled("w") + pickled_value({}) + pickled("epoch") + pickled(3) + "u")),
              HasSubstr("\"epoch\" is an int, wanted a tensor"));
  EXPECT_THAT(refused(opcodes("}" + pickled(7) + pickled_value({}) + "s")), HasSubstr("has an int among the names"));
  const std::string twice = "}(" + pickled("w") + pickled_value({}) + pickled("w") + pickled_value({}) + "u";
  EXPECT_THAT(refused_pickle(ErrorCode::corrupt_data, opcodes(twice)), HasSubstr("twice"));
}

TEST(PtFile, ACheckpointsStateDictIsFoundUnderItsUsualNames) {
  for (const std::string name : {"state_dict", "model_state_dict", "model"}) {
    const std::string inner = "}" + pickled("w") + pickled_value({}) + "s";
    const std::string pickle = opcodes("}(" + pickled("epoch") + pickled(3) + pickled(name) + inner + "u");
    EXPECT_EQ(read(archive_of(pickle))[0].name, "w") << name;
  }
}

TEST(PtFile, OtherKindsOfFilesAreToldApart) {
  const std::string legacy("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.more");
  EXPECT_THAT(refusal(ErrorCode::unsupported, legacy), HasSubstr("before 1.6"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, "{\"no\": \"tensors\"}"), HasSubstr("without the end of a zip archive"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, ""), HasSubstr("0 bytes"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, zip_archive({{"a/b", "c"}})), HasSubstr("without data.pkl"));
  EXPECT_THAT(refusal(ErrorCode::unsupported, torch_archive("N.", {{"constants.pkl", "N."}})),
              HasSubstr("TorchScript"));
  EXPECT_THAT(refusal(ErrorCode::unsupported, torch_archive("N.", {{"archive_format", "pt2"}})),
              HasSubstr("torch.export"));
  EXPECT_THAT(refusal(ErrorCode::unsupported, zip_archive({{"serialized_exported_program.json", "{}"}})),
              HasSubstr("torch.export"));
  EXPECT_THAT(refusal(ErrorCode::unsupported,
                      zip_archive({{"net/archive_format", "pt2"}, {"net/data/aotinductor/model/net.wrapper.so", "x"}})),
              HasSubstr("AOTInductor"));
  EXPECT_THAT(refusal(ErrorCode::unsupported, zip_archive({{"a/data.pkl", "N."}, {"a/byteorder", "big"}})),
              HasSubstr("big-endian"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, zip_archive({{"a/data.pkl", "N."}, {"a/byteorder", "odd"}})),
              HasSubstr("byteorder"));
}

TEST(PtFile, WhatIsCompressedIsRefusedWhereItIsNeeded) {
  std::string file = archive_of(pickled_tensor("w", {}));
  const std::size_t pickle = file.find("PK\x01\x02");  // The directory's first entry.
  file[pickle + 10] = 8;
  EXPECT_THAT(refusal(ErrorCode::unsupported, file), HasSubstr("data.pkl\" is compressed"));
}

TEST(ZipRecords, NumbersOfTheDirectoryAreComparedWithTheFile) {
  const std::string whole = zip_archive({{"a/1", "first"}, {"a/2", "second"}});
  const std::size_t directory = whole.find("PK\x01\x02"), end = whole.find("PK\x05\x06");
  const auto changed = [&](std::size_t at, const std::string& bytes) {
    std::string file = whole;
    file.replace(at, bytes.size(), bytes);
    return file;
  };
  const auto refused = [](const std::string& file, ErrorCode code = ErrorCode::corrupt_data) {
    return error_of(code, [&] { zip_records(file, "the file"); });
  };
  ASSERT_EQ(zip_records(whole, "the file").size(), 2U);
  EXPECT_EQ(whole.substr(zip_records(whole, "the file")[1].begin, 6), "second");
  EXPECT_THAT(refused(changed(end + 10, "\xff\xff")), HasSubstr("65535 files"));
  EXPECT_THAT(refused(changed(end + 16, "\xff\xff\xff\x7f")), HasSubstr("its directory says"));
  EXPECT_THAT(refused(changed(directory + 24, "\xff\xff\xff\x7f")), HasSubstr("stored as 5"));
  EXPECT_THAT(refused(changed(directory + 20, "\xff\xff\xff\x7f\xff\xff\xff\x7f")), HasSubstr("bytes at"));
  EXPECT_THAT(refused(changed(directory + 42, "\x07")), HasSubstr("not where the directory says"));
  EXPECT_FALSE(zip_records(changed(directory + 10, "\x08"), "the file")[0].is_plain);  // Compressed.
  EXPECT_FALSE(zip_records(changed(directory + 8, "\x01"), "the file")[0].is_plain);   // Encrypted.
  EXPECT_THAT(refused(changed(end + 4, "\x01"), ErrorCode::unsupported), HasSubstr("several parts"));
  // Both names for the first file's place.
  const std::size_t second = whole.find("PK\x01\x02", directory + 1);
  EXPECT_THAT(refused(changed(second + 20, std::string("\x05\0\0\0\x05\0\0\0", 8)).replace(second + 42, 1, 1, '\0')),
              HasSubstr("overlap"));
  EXPECT_THAT(refused(zip_archive({{"a/1", "x"}, {"a/1", "y"}})), HasSubstr("twice"));
}

// As torch writes its end: the numbers stand in both, and those of 64 bits count.
TEST(ZipRecords, AZip64DirectoryIsFollowedWithinTheFile) {
  const std::string plain = zip_archive({{"a/1", "first"}});
  const std::size_t directory = plain.find("PK\x01\x02"), end = plain.find("PK\x05\x06");
  const auto with_end64 = [&](std::uint64_t count, std::uint64_t bytes, std::uint64_t begin, std::uint64_t place) {
    const std::string end64 = "PK\x06\x06" + std::string(20, '\0') + little_endian(count) + little_endian(count) +
                              little_endian(bytes) + little_endian(begin);
    return plain.substr(0, end) + end64 + "PK\x06\x07" + std::string(4, '\0') + little_endian(place) +
           std::string(4, '\0') + plain.substr(end);
  };
  EXPECT_EQ(zip_records(with_end64(1, end - directory, directory, end), "the file").size(), 1U);
  const std::uint64_t huge = ~std::uint64_t{0};
  const auto refused = [](const std::string& file) {
    return error_of(ErrorCode::corrupt_data, [&] { zip_records(file, "the file"); });
  };
  EXPECT_THAT(refused(with_end64(huge, end - directory, directory, end)), HasSubstr("its directory says"));
  EXPECT_THAT(refused(with_end64(1, huge, directory, end)), HasSubstr("its directory says"));
  EXPECT_THAT(refused(with_end64(1, end - directory, huge, end)), HasSubstr("its directory says"));
  EXPECT_THAT(refused(with_end64(1, end - directory, directory, huge)), HasSubstr("ends within"));
  EXPECT_THAT(refused(with_end64(1, end - directory, directory, 0)), HasSubstr("not where it says"));
}

}  // namespace
}  // namespace headrace
