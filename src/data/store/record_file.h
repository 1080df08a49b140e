// Many small records in one file, each found by a key of 64 bits: written once, then only read.
//
// Little-endian: "HRRECORD", u32 format, u32 0; the records, one behind the other; a table of {u64 key, u64 place,
// u32 size, u32 lower half of the record's XXH3}, by key; {u64 records, u64 place of the table, u64 XXH3 of the table,
// u64 XXH3 of these three, "HRRECEND"}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/files.h"
#include "data/store/descriptor.h"

namespace headrace {

// A row of the table, in memory as in the file.
struct RecordPlace {
  std::uint64_t key;
  std::uint64_t at;
  std::uint32_t size;
  std::uint32_t check;
};

enum class RecordState { absent, damaged, whole };

// Keeps the table in memory (24 bytes a record) and the file open, and reads records by pread. Thread-safe.
class RecordFile {
 public:
  static constexpr std::int64_t kRecordBytesMax = std::int64_t{16} << 20;

  // Of a table of more than `records_max` records no memory is taken. Errors name the file: not_found, io,
  // corrupt_data (no such file, or not a whole one), unsupported (another format, or too many records).
  RecordFile(const std::filesystem::path& path, std::int64_t records_max);

  // `record` becomes it, and grows to the largest. damaged: the system cannot read it, or its bytes are others than
  // were written; `record` then holds anything.
  RecordState find(std::uint64_t key, std::vector<std::uint8_t>& record) const;

  std::int64_t size() const noexcept { return std::ssize(places_); }  // Records.
  std::int64_t bytes() const noexcept { return bytes_; }              // Of the file.
  std::span<const RecordPlace> places() const noexcept { return places_; }

 private:
  Descriptor file_;
  std::int64_t bytes_ = 0;
  std::vector<RecordPlace> places_;
};

// Nothing is at `path` before commit(). Errors as FileWriter's. For one thread at a time.
class RecordFileWriter {
 public:
  explicit RecordFileWriter(const std::filesystem::path& path);

  bool contains(std::uint64_t key) const { return places_.contains(key); }
  void add(std::uint64_t key, std::span<const std::uint8_t> record);  // Of a new key, at most kRecordBytesMax.
  void add_missing(const RecordFile& from);                           // Its whole records whose keys are not here.
  std::int64_t size() const noexcept { return std::ssize(places_); }
  std::int64_t bytes() const noexcept;  // Of the file, once it is whole.
  void commit();

 private:
  FileWriter file_;
  std::uint64_t at_ = 0;
  std::unordered_map<std::uint64_t, RecordPlace> places_;
};

}  // namespace headrace
