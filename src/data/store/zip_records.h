// The directory of a zip archive, for what reads files in it that are stored uncompressed, as torch.save writes them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// A file within the archive: bytes `begin` to `begin + bytes` of it.
struct ZipRecord {
  std::string_view name;  // A view into the archive.
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  bool is_plain = true;  // Neither compressed nor encrypted: these bytes are its content.
};

// All files of the archive in the order of its directory, with or without zip64. Only what the archive itself holds is
// believed: every number is compared with its size before it is used, and memory goes by the directory's real length.
// Source: PKWARE's APPNOTE.TXT, sections 4.3 to 4.5.
//
// Every Error begins with `what`. {corrupt_data}: no zip archive, cut off, places beyond the archive, files that
// overlap or have one name. {unsupported}: an archive in several parts. Checksums are not compared:
// torch.save can be told to write others.
std::vector<ZipRecord> zip_records(std::string_view archive, const std::string& what);

}  // namespace headrace
