// What lies in a pack: many samples in one file, in order, each with its name, its checksum and an index of its own.
//
// Little-endian: PackHead, in format 2 what the fields of a sample are; for each sample its PackRow, its name, its
// bytes, its index; then all rows again, all names, the names of the classes, each ended by a newline; PackTrailer. So
// a file that lacks its end, as a killed writer leaves it, can be read from its front.
#pragma once

#include <headrace/field.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/base/hash.h"

namespace headrace {

// 1: of images and labels. 2: of any fields, which all lie in a sample's bytes as FieldBytes (data/source) writes them.
constexpr std::uint32_t kPackFormat = 1, kPackFieldsFormat = 2;
constexpr std::uint8_t kPackFields = 4;  // PackRow::form of every sample of format 2.
constexpr std::string_view kPackMagic = "HRPACKED", kPackEnd = "HRPACEND";
constexpr std::uint32_t kPackNameBytesMax = 1 << 16;
constexpr std::uint32_t kPackSampleBytesMax = std::uint32_t{1} << 30;  // As of a file that is read whole.
constexpr std::uint32_t kPackIndexBytesMax = std::uint32_t{16} << 20;

struct PackHead {
  char magic[8];              // "HRPACKED"
  std::uint32_t format;       // 1, or 2.
  std::uint32_t classes;      // Lower half of the XXH3 of the classes, which the end of the file lists.
  std::uint64_t fingerprint;  // Of the source, so that what was begun with one is not gone on with by another.
  std::uint64_t check;        // XXH3 of what stands before it.
};

// In format 2 behind the head, and then as many bytes as it says, schema_bytes(), and their XXH3.
struct PackFieldsHead {
  std::uint32_t bytes;
  std::uint32_t zero;
};

// What the file knows of a sample; `split`, `form`, `label` and the size mean what whoever packs says, but for the
// forms of data/store/row_blocks.h.
struct PackRow {
  std::uint64_t at;    // Of its bytes in the file; its name ends there.
  std::uint64_t hash;  // XXH3 of its bytes.
  std::uint32_t size;
  std::uint32_t index_size;
  std::uint32_t index_check;  // Lower half of the index' XXH3.
  std::uint32_t name_size;
  std::uint32_t label;
  std::uint32_t height;
  std::uint32_t width;
  std::uint8_t channels;
  std::uint8_t form;
  std::uint8_t split;
  std::uint8_t zero;
  std::uint64_t check;  // XXH3 of what stands before it and of the name.
};

struct PackTrailer {
  std::uint64_t samples;
  std::uint64_t table_at;
  std::uint64_t names_bytes;
  std::uint64_t classes_bytes;
  std::uint64_t table_hash;  // XXH3 of rows, names and classes.
  std::uint64_t check;       // XXH3 of what stands before it.
  char magic[8];             // "HRPACEND"
};

static_assert(sizeof(PackHead) == 32 && sizeof(PackRow) == 56 && sizeof(PackTrailer) == 56);
static_assert(std::is_trivially_copyable_v<PackRow>);

inline std::uint64_t check_of(const PackHead& head) {
  return xxh3(std::as_bytes(std::span{&head, 1}).first(offsetof(PackHead, check)));
}
inline std::uint64_t check_of(const PackTrailer& trailer) {
  return xxh3(std::as_bytes(std::span{&trailer, 1}).first(offsetof(PackTrailer, check)));
}
inline std::uint64_t check_of(const PackRow& row, std::string_view name) {
  Xxh3Stream stream;
  stream.update(std::as_bytes(std::span{&row, 1}).first(offsetof(PackRow, check)));
  stream.update(std::as_bytes(std::span{name}));
  return stream.digest();
}
// As the end of the file lists them.
inline std::string class_lines(const std::vector<std::string>& classes) {
  std::string lines;
  for (const std::string& name : classes) lines += name + "\n";
  return lines;
}
// What stands before the first sample, the check of `head` filled in. `schema`: empty in format 1.
std::vector<std::byte> pack_front(PackHead head, const Schema& schema);
template <class Bytes>
std::uint32_t low_check_of(const Bytes& bytes) {
  return static_cast<std::uint32_t>(xxh3(std::as_bytes(std::span{bytes})));
}

}  // namespace headrace
