#include "data/store/zip_records.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "core/base/fail.h"
#include "data/store/safetensors.h"

namespace headrace {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian and read as it lies");

constexpr std::uint32_t kEndMark = 0x06054b50, kEnd64Mark = 0x06064b50, kLocator64Mark = 0x07064b50,
                        kEntryMark = 0x02014b50, kLocalMark = 0x04034b50;
constexpr std::uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20, kEntryBytes = 46, kLocalBytes = 30;
constexpr std::uint64_t kCommentBytesMax = std::numeric_limits<std::uint16_t>::max();
constexpr std::uint32_t kIn64 = std::numeric_limits<std::uint32_t>::max();  // The number stands in the zip64 field.
constexpr std::uint16_t kField64 = 1;
constexpr std::uint16_t kEncrypted = 1;  // A flag of an entry.

// Where the directory lies.
struct Directory {
  std::uint64_t count = 0, begin = 0, bytes = 0;
};

class Archive {
 public:
  Archive(std::string_view bytes, const std::string& what) : bytes_(bytes), what_(what) {}

  std::vector<ZipRecord> records() const {
    const Directory directory = find_directory();
    std::vector<ZipRecord> records;
    records.reserve(directory.count);  // No more than fit into the directory's bytes.
    std::uint64_t at = directory.begin;
    for (std::uint64_t i = 0; i < directory.count; ++i) {
      records.push_back(record(at, directory));
      at += kEntryBytes + number<std::uint16_t>(at + 28) + number<std::uint16_t>(at + 30) +
            number<std::uint16_t>(at + 32);
    }
    check_apart(records);
    return records;
  }

 private:
  template <class... Args>
  [[noreturn]] void corrupt(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::corrupt_data, "{}: {}", what_, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string_view text(std::uint64_t at, std::uint64_t size) const {
    if (at > bytes_.size() || size > bytes_.size() - at) corrupt("ends within its directory");
    return bytes_.substr(at, size);
  }

  template <class Number>
  Number number(std::uint64_t at) const {
    Number value{};
    std::memcpy(&value, text(at, sizeof value).data(), sizeof value);
    return value;
  }

  // The end record is the last thing but for its own comment.
  std::uint64_t find_end() const {
    if (bytes_.size() >= kEndBytes) {
      const std::uint64_t last = bytes_.size() - kEndBytes;
      const std::uint64_t first = last - std::min(last, kCommentBytesMax);
      for (std::uint64_t at = last + 1; at-- > first;) {
        if (number<std::uint32_t>(at) == kEndMark && number<std::uint16_t>(at + 20) == last - at) return at;
      }
    }
    corrupt("{} bytes without the end of a zip archive: not a file of torch.save, or cut off", bytes_.size());
  }

  Directory find_directory() const {
    std::uint64_t end = find_end();
    Directory directory{number<std::uint16_t>(end + 10), number<std::uint32_t>(end + 16),
                        number<std::uint32_t>(end + 12)};
    std::uint64_t parts = std::uint64_t{number<std::uint16_t>(end + 4)} + number<std::uint16_t>(end + 6);
    if (end >= kLocator64Bytes && number<std::uint32_t>(end - kLocator64Bytes) == kLocator64Mark) {
      end = number<std::uint64_t>(end - kLocator64Bytes + 8);
      text(end, kEnd64Bytes);
      if (number<std::uint32_t>(end) != kEnd64Mark) corrupt("its zip64 directory is not where it says");
      parts = std::uint64_t{number<std::uint32_t>(end + 16)} + number<std::uint32_t>(end + 20);
      directory = {number<std::uint64_t>(end + 32), number<std::uint64_t>(end + 48), number<std::uint64_t>(end + 40)};
    }
    if (parts != 0) fail(ErrorCode::unsupported, "{}: a zip archive in several parts", what_);
    if (directory.begin > end || directory.bytes > end - directory.begin ||
        directory.count > directory.bytes / kEntryBytes) {
      corrupt("its directory says {} files in {} bytes at {}, and ends at {}", directory.count, directory.bytes,
              directory.begin, end);
    }
    return directory;
  }

  ZipRecord record(std::uint64_t at, const Directory& directory) const {
    if (number<std::uint32_t>(at) != kEntryMark) corrupt("its directory is damaged at byte {}", at);
    const auto name_bytes = number<std::uint16_t>(at + 28), extra_bytes = number<std::uint16_t>(at + 30);
    ZipRecord record{.name = text(at + kEntryBytes, name_bytes)};
    std::uint64_t stored = number<std::uint32_t>(at + 20);
    record.bytes = number<std::uint32_t>(at + 24);
    std::uint64_t local = number<std::uint32_t>(at + 42);
    // In this order, and only those that did not fit.
    std::string_view wide = field64(text(at + kEntryBytes + name_bytes, extra_bytes));
    for (std::uint64_t* value : {&record.bytes, &stored, &local}) {
      if (*value != kIn64 || wide.empty()) continue;
      if (wide.size() < sizeof *value) corrupt("{}: its zip64 field is too short", shown(record.name));
      std::memcpy(value, wide.data(), sizeof *value);
      wide.remove_prefix(sizeof *value);
    }
    const bool is_encrypted = (number<std::uint16_t>(at + 8) & kEncrypted) != 0;
    record.is_plain = !is_encrypted && number<std::uint16_t>(at + 10) == 0;
    if (record.is_plain && stored != record.bytes) {
      corrupt("{}: of {} bytes, stored as {}", shown(record.name), record.bytes, stored);
    }
    record.bytes = stored;
    if (local > directory.begin || number<std::uint32_t>(local) != kLocalMark) {
      corrupt("{} is not where the directory says", shown(record.name));
    }
    record.begin = local + kLocalBytes + number<std::uint16_t>(local + 26) + number<std::uint16_t>(local + 28);
    if (record.begin > directory.begin || record.bytes > directory.begin - record.begin) {
      corrupt("{}: {} bytes at {}, the directory begins at {}", shown(record.name), record.bytes, record.begin,
              directory.begin);
    }
    return record;
  }

  // The content of the zip64 field among an entry's extra fields; empty: there is none.
  std::string_view field64(std::string_view extra) const {
    while (extra.size() >= 4) {
      std::uint16_t kind = 0, size = 0;
      std::memcpy(&kind, extra.data(), sizeof kind);
      std::memcpy(&size, extra.data() + 2, sizeof size);
      if (size > extra.size() - 4) corrupt("an extra field of its directory is damaged");
      if (kind == kField64) return extra.substr(4, size);
      extra.remove_prefix(std::size_t{4} + size);
    }
    return {};
  }

  // Two names for the same bytes, or two files of one name, are no archive that a writer meant.
  void check_apart(const std::vector<ZipRecord>& records) const {
    std::set<std::string_view> names;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
    for (const ZipRecord& record : records) {
      if (!names.insert(record.name).second) corrupt("has {} twice", shown(record.name));
      if (record.bytes > 0) places.emplace_back(record.begin, record.begin + record.bytes);
    }
    std::sort(places.begin(), places.end());
    for (std::size_t i = 1; i < places.size(); ++i) {
      if (places[i].first < places[i - 1].second) corrupt("two of its files overlap at byte {}", places[i].first);
    }
  }

  static std::string shown(std::string_view name) { return shown_name(std::string(name)); }

  const std::string_view bytes_;
  const std::string& what_;
};

}  // namespace

std::vector<ZipRecord> zip_records(std::string_view archive, const std::string& what) {
  return Archive(archive, what).records();
}

}  // namespace headrace
