#include "data/store/record_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/store/detail/positioned_read.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

using detail::read_at;

constexpr std::uint32_t kFormat = 1;

struct Head {
  char magic[8];
  std::uint32_t format;
  std::uint32_t zero;
};
constexpr Head kHead{{'H', 'R', 'R', 'E', 'C', 'O', 'R', 'D'}, kFormat, 0};

struct Trailer {
  std::uint64_t records;
  std::uint64_t table_at;
  std::uint64_t table_hash;
  std::uint64_t hash;  // Of what stands before it.
  char magic[8];
};
constexpr std::string_view kEnd = "HRRECEND";

static_assert(sizeof(Head) == 16 && sizeof(RecordPlace) == 24 && sizeof(Trailer) == 40);
static_assert(std::is_trivially_copyable_v<RecordPlace> && std::is_trivially_copyable_v<Trailer>);

std::uint64_t hash_of(const Trailer& trailer) {
  return xxh3(std::as_bytes(std::span{&trailer, 1}).first(offsetof(Trailer, hash)));
}

std::uint32_t check_of(std::span<const std::uint8_t> record) {
  return static_cast<std::uint32_t>(xxh3(std::as_bytes(record)));
}

int open_to_read(const std::filesystem::path& path) {
  const int number = ::open(path.c_str(), kOpenToRead);
  if (number < 0) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot open {}: {}",
         printable_name(path.native()), system_message(reason));
  }
  return number;
}

// A record file as it is being opened.
class Opening {
 public:
  Opening(int descriptor, const std::filesystem::path& path) : descriptor_(descriptor), path_(path) {}

  std::uint64_t bytes() {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail_io(errno);
    if (!S_ISREG(status.st_mode)) damaged("is not a regular file");
    bytes_ = static_cast<std::uint64_t>(status.st_size);
    return bytes_;
  }

  Trailer trailer() {
    Head head{};
    if (bytes_ < sizeof head + sizeof(Trailer)) damaged(fmt::format("has {} bytes, too few for a record file", bytes_));
    read(0, std::as_writable_bytes(std::span{&head, 1}));
    if (std::memcmp(head.magic, kHead.magic, sizeof head.magic) != 0 || head.zero != 0) damaged("is not a record file");
    if (head.format != kFormat) {
      fail(ErrorCode::unsupported, "store: {} has format {}; wanted {}", name(), head.format, kFormat);
    }
    Trailer trailer{};
    read(bytes_ - sizeof trailer, std::as_writable_bytes(std::span{&trailer, 1}));
    if (std::string_view(trailer.magic, sizeof trailer.magic) != kEnd || trailer.hash != hash_of(trailer)) {
      damaged("is cut off or damaged at its end");
    }
    return trailer;
  }

  std::vector<RecordPlace> places(const Trailer& trailer, std::int64_t records_max) {
    if (trailer.records > static_cast<std::uint64_t>(records_max)) {
      fail(ErrorCode::unsupported, "store: {} has {} records; at most {} are wanted", name(), trailer.records,
           records_max);
    }
    const std::uint64_t end = bytes_ - sizeof(Trailer);
    if (trailer.table_at < sizeof(Head) || trailer.table_at > end ||
        (end - trailer.table_at) % sizeof(RecordPlace) != 0 ||
        (end - trailer.table_at) / sizeof(RecordPlace) != trailer.records) {
      damaged(fmt::format("has a table of {} records at byte {} of {}", trailer.records, trailer.table_at, bytes_));
    }
    std::vector<RecordPlace> places(static_cast<std::size_t>(trailer.records));
    read(trailer.table_at, std::as_writable_bytes(std::span{places}));
    if (xxh3(std::as_bytes(std::span{places})) != trailer.table_hash) damaged("has a damaged table");
    for (std::size_t i = 0; i < places.size(); ++i) {
      const RecordPlace& place = places[i];
      const bool inside = place.at >= sizeof(Head) && place.at <= trailer.table_at &&
                          place.size <= trailer.table_at - place.at && place.size <= RecordFile::kRecordBytesMax;
      if (!inside) damaged(fmt::format("has a record of {} bytes at byte {} of {}", place.size, place.at, bytes_));
      if (i > 0 && places[i - 1].key >= place.key) damaged("has a table out of order");
    }
    return places;
  }

 private:
  std::string name() const { return printable_name(path_.native()); }
  void read(std::uint64_t at, std::span<std::byte> target) {
    const int reason = read_at(descriptor_, at, target);
    if (reason == ENODATA) damaged("shrank while it was read");
    if (reason != 0) fail_io(reason);
  }
  [[noreturn]] void fail_io(int reason) const {
    fail(ErrorCode::io, "store: cannot read {}: {}", name(), system_message(reason));
  }
  [[noreturn]] void damaged(const std::string& how) const {
    fail(ErrorCode::corrupt_data, "store: {} {}", name(), how);
  }

  const int descriptor_;
  const std::filesystem::path& path_;
  std::uint64_t bytes_ = 0;
};

}  // namespace

RecordFile::RecordFile(const std::filesystem::path& path, std::int64_t records_max) : file_(open_to_read(path)) {
  Opening opening{file_.number(), path};
  bytes_ = static_cast<std::int64_t>(opening.bytes());
  places_ = opening.places(opening.trailer(), records_max);
}

RecordState RecordFile::find(std::uint64_t key, std::vector<std::uint8_t>& record) const {
  const auto place = std::lower_bound(places_.begin(), places_.end(), key,
                                      [](const RecordPlace& row, std::uint64_t wanted) { return row.key < wanted; });
  if (place == places_.end() || place->key != key) return RecordState::absent;
  record.resize(place->size);
  const bool read = read_at(file_.number(), place->at, std::as_writable_bytes(std::span{record})) == 0;
  return read && check_of(record) == place->check ? RecordState::whole : RecordState::damaged;
}

RecordFileWriter::RecordFileWriter(const std::filesystem::path& path) : file_(path), at_(sizeof kHead) {
  file_.append(std::as_bytes(std::span{&kHead, 1}));
}

void RecordFileWriter::add(std::uint64_t key, std::span<const std::uint8_t> record) {
  HEADRACE_CHECK(std::ssize(record) <= RecordFile::kRecordBytesMax, "store: a record of {} bytes", record.size());
  const auto size = static_cast<std::uint32_t>(record.size());
  const bool is_new = places_.emplace(key, RecordPlace{key, at_, size, check_of(record)}).second;
  HEADRACE_CHECK(is_new, "store: two records of key {:016x}", key);
  file_.append(std::as_bytes(record));
  at_ += size;
}

void RecordFileWriter::add_missing(const RecordFile& from) {
  std::vector<std::uint8_t> record;
  for (const RecordPlace& place : from.places()) {
    if (!contains(place.key) && from.find(place.key, record) == RecordState::whole) add(place.key, record);
  }
}

std::int64_t RecordFileWriter::bytes() const noexcept {
  return static_cast<std::int64_t>(at_ + places_.size() * sizeof(RecordPlace) + sizeof(Trailer));
}

void RecordFileWriter::commit() {
  std::vector<RecordPlace> table;
  table.reserve(places_.size());
  for (const auto& [key, place] : places_) table.push_back(place);
  std::sort(table.begin(), table.end(),
            [](const RecordPlace& left, const RecordPlace& right) { return left.key < right.key; });
  const auto rows = std::as_bytes(std::span{table});
  Trailer trailer{table.size(), at_, xxh3(rows), 0, {}};
  trailer.hash = hash_of(trailer);
  kEnd.copy(trailer.magic, sizeof trailer.magic);
  file_.append(rows);
  file_.append(std::as_bytes(std::span{&trailer, 1}));
  file_.commit();
}

}  // namespace headrace
