#include "data/store/pack_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/scratch.h"
#include "data/store/detail/patient_read.h"
#include "data/store/detail/positioned_read.h"
#include "data/store/file_name.h"
#include "data/store/row_blocks.h"

namespace headrace {
namespace {

int open_to_read(const std::filesystem::path& path, const FileCalls& calls) {
  const int number = calls.open_at(AT_FDCWD, path.c_str(), kOpenToRead);
  if (number >= 0) return number;
  const int reason = errno;
  std::filesystem::path partial = path;
  partial += ".partial";
  std::error_code ignored;  // Only to say more.
  const bool unfinished = reason == ENOENT && std::filesystem::exists(partial, ignored);
  fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot open {}: {}{}",
       printable_name(path.native()), system_message(reason),
       unfinished ? "; it is not finished, and the same `headrace pack` goes on with it" : "");
}

// The parts of a pack as it is being opened, each checked before memory is taken for what it promises.
class Opening {
 public:
  Opening(int descriptor, const std::filesystem::path& path) : descriptor_(descriptor), path_(path) {
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0) fail_io(errno);
    if (!S_ISREG(status.st_mode)) damaged("is not a regular file");
    bytes_ = static_cast<std::uint64_t>(status.st_size);
  }

  PackHead head() const {
    PackHead head{};
    if (bytes_ < sizeof head + sizeof(PackTrailer)) damaged(fmt::format("has {} bytes, too few for a pack", bytes_));
    read(0, std::as_writable_bytes(std::span{&head, 1}));
    if (std::string_view(head.magic, sizeof head.magic) != kPackMagic) damaged("is not a pack");
    if (head.format != kPackFormat && head.format != kPackFieldsFormat) {
      fail(ErrorCode::unsupported, "store: {} has format {}; wanted {} or {}", name(), head.format, kPackFormat,
           kPackFieldsFormat);
    }
    if (head.check != check_of(head)) damaged("has a damaged head");
    return head;
  }

  // Of a head of format 2; none otherwise.
  Schema fields(const PackHead& head) const {
    if (head.format == kPackFormat) return {};
    PackFieldsHead before{};
    std::uint64_t check = 0, at = sizeof head;
    read(at, std::as_writable_bytes(std::span{&before, 1}));
    at += sizeof before;
    const std::uint64_t wanted = at + before.bytes + sizeof check + sizeof(PackTrailer);
    if (before.zero != 0 || before.bytes > kSchemaBytesMax || wanted > bytes_) {
      damaged(fmt::format("tells its fields in {} bytes", before.bytes));
    }
    std::vector<std::byte> bytes(before.bytes);
    read(at, bytes);
    read(at + bytes.size(), std::as_writable_bytes(std::span{&check, 1}));
    if (check != xxh3(bytes)) damaged("has damaged fields");
    Schema schema = schema_of(bytes, fmt::format("store: {}", name()));
    if (schema.empty()) damaged("has no fields");
    return schema;
  }

  PackTrailer trailer(std::uint64_t front) const {
    PackTrailer trailer{};
    read(bytes_ - sizeof trailer, std::as_writable_bytes(std::span{&trailer, 1}));
    if (std::string_view(trailer.magic, sizeof trailer.magic) != kPackEnd || trailer.check != check_of(trailer)) {
      damaged("is cut off or damaged at its end");
    }
    const std::uint64_t end = bytes_ - sizeof trailer;
    if (trailer.table_at < front || trailer.table_at > end) {
      damaged(fmt::format("has its table at byte {} of {}", trailer.table_at, bytes_));
    }
    const std::uint64_t table = end - trailer.table_at;
    if (table > PackFile::kTableBytesMax) {
      fail(ErrorCode::unsupported, "store: {} has a table of {} bytes; at most {} are read", name(), table,
           PackFile::kTableBytesMax);
    }
    const std::uint64_t rows =
        trailer.samples <= table / sizeof(PackRow) ? trailer.samples * sizeof(PackRow) : table + 1;
    if (rows > table || trailer.names_bytes > table - rows ||
        trailer.classes_bytes != table - rows - trailer.names_bytes) {
      damaged(fmt::format("has a table of {} bytes for {} samples", table, trailer.samples));
    }
    return trailer;
  }

  void read(std::uint64_t at, std::span<std::byte> target) const {
    const int reason = detail::read_at(descriptor_, at, target);
    if (reason == ENODATA) damaged("shrank while it was read");
    if (reason != 0) fail_io(reason);
  }

  void check(const PackRow& row, std::uint64_t from, std::uint64_t table_at) const {
    const bool named = row.name_size > 0 && row.name_size <= kPackNameBytesMax;
    const bool inside = named && row.at >= from + sizeof(PackRow) + row.name_size && row.at <= table_at &&
                        row.size <= table_at - row.at && row.index_size <= table_at - row.at - row.size;
    if (!inside || row.size > kPackSampleBytesMax || row.index_size > kPackIndexBytesMax) {
      damaged(
          fmt::format("has a sample of {} and {} bytes at byte {} of {}", row.size, row.index_size, row.at, bytes_));
    }
  }

  [[noreturn]] void damaged(const std::string& how) const {
    fail(ErrorCode::corrupt_data, "store: {} {}", name(), how);
  }

 private:
  std::string name() const { return printable_name(path_.native()); }
  [[noreturn]] void fail_io(int reason) const {
    fail(ErrorCode::io, "store: cannot read {}: {}", name(), system_message(reason));
  }

  const int descriptor_;
  const std::filesystem::path& path_;
  std::uint64_t bytes_ = 0;
};

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    lines.emplace_back(text.substr(at, end - at));
    if (end == std::string_view::npos) break;
    at = end + 1;
  }
  return lines;
}

}  // namespace

PackFile::PackFile(std::filesystem::path path, const FileCalls& calls)
    : path_(std::move(path)), calls_(&calls), file_(open_to_read(path_, calls)) {
  const Opening opening{file_.number(), path_};
  const PackHead head = opening.head();
  fingerprint_ = head.fingerprint;
  schema_ = opening.fields(head);
  const std::uint64_t front = pack_front(head, schema_).size();
  const PackTrailer trailer = opening.trailer(front);
  data_end_ = trailer.table_at;
  rows_.resize(static_cast<std::size_t>(trailer.samples));
  names_.resize(static_cast<std::size_t>(trailer.names_bytes));
  std::string classes(static_cast<std::size_t>(trailer.classes_bytes), '\0');
  Xxh3Stream hash;
  std::uint64_t at = data_end_;
  for (const std::span<std::byte> part :
       {std::as_writable_bytes(std::span{rows_}), std::as_writable_bytes(std::span{names_}),
        std::as_writable_bytes(std::span{classes})}) {
    opening.read(at, part);
    hash.update(part);
    at += part.size();
  }
  if (hash.digest() != trailer.table_hash) opening.damaged("has a damaged table");
  classes_ = lines_of(classes);
  name_at_.reserve(rows_.size());
  std::uint64_t name_at = 0, from = front;
  for (const PackRow& row : rows_) {
    opening.check(row, from, data_end_);
    name_at_.push_back(name_at);
    name_at += row.name_size;
    if (name_at > names_.size()) opening.damaged("has fewer names than samples");
    from = row.at + row.size + row.index_size;
  }
}

std::string_view PackFile::name(std::size_t sample) const noexcept {
  return std::string_view(names_).substr(name_at_[sample], rows_[sample].name_size);
}

std::string PackFile::described(std::size_t sample) const {
  return fmt::format("{}:{}", printable_name(path_.native()), printable_name(name(sample)));
}

void PackFile::fail_as_changed(std::size_t sample) const {
  fail(ErrorCode::corrupt_data, "store: {}: its {} bytes are not those that were packed", described(sample),
       rows_[sample].size);
}

// A handle that went stale stays so: each further try opens the file anew. What lies there then is the sample's only if
// its checksum says so.
void PackFile::read_at(std::size_t sample, std::uint64_t at, std::span<std::uint8_t> target) const {
  detail::PatientRead reading{*calls_};
  std::int64_t got = reading.fill(file_.number(), at, target);
  int reason = errno;
  while (got < 0 && reading.again(reason)) {
    const Descriptor anew{calls_->open_at(AT_FDCWD, path_.c_str(), kOpenToRead)};
    got = anew.number() < 0 ? -1 : reading.fill(anew.number(), at, target);
    reason = errno;
  }
  if (got < 0) {
    fail(ErrorCode::io, "store: cannot read {}: {}", described(sample),
         detail::reading_failure(reason, reading.tries()));
  }
  if (got < std::ssize(target)) {
    fail(ErrorCode::corrupt_data, "store: {}: the pack has become shorter", described(sample));
  }
}

PackedBytes PackFile::read(std::size_t sample, std::vector<std::uint8_t>& buffer) const {
  const PackRow& row = rows_[sample];
  const std::size_t whole = std::size_t{row.size} + row.index_size;
  const auto all = scratch_of(buffer, whole);
  read_at(sample, row.at, all);
  const auto bytes = all.first(row.size), index = all.subspan(row.size);
  if (xxh3(std::as_bytes(bytes)) != row.hash) fail_as_changed(sample);
  return {bytes, low_check_of(index) == row.index_check ? index : index.first(0)};
}

std::span<const std::uint8_t> PackFile::read_front(std::size_t sample, std::size_t bytes,
                                                   std::vector<std::uint8_t>& buffer) const {
  const auto front = scratch_of(buffer, bytes);
  read_at(sample, rows_[sample].at, front);
  return front;
}

std::span<const std::uint8_t> PackFile::read_rows(std::size_t sample, std::uint32_t first, std::uint32_t count,
                                                  std::vector<std::uint8_t>& buffer) const {
  const PackRow& row = rows_[sample];
  const auto index = scratch_of(buffer, row.index_size);
  read_at(sample, row.at + row.size, index);
  const auto range = low_check_of(index) == row.index_check ? find_blocks(row, index, first, count) : std::nullopt;
  if (!range) fail_as_changed(sample);
  const std::size_t scratch = block_scratch_bytes(row), skipped = (first - range->first_row) * row_bytes(row);
  const std::size_t pixels = scratch == 0 ? 0 : range->rows * row_bytes(row);
  const std::size_t whole = index.size() + range->size + scratch + pixels;
  if (buffer.size() < whole) buffer.resize(whole);
  auto left = std::span{buffer}.first(whole);
  const auto take = [&left](std::size_t size) {
    const auto taken = left.first(size);
    left = left.subspan(size);
    return taken;
  };
  const auto kept_index = take(row.index_size), stored = take(range->size), planes = take(scratch), made = take(pixels);
  read_at(sample, row.at + range->begin, stored);
  if (!decode_blocks(row, kept_index, *range, stored, planes, made)) fail_as_changed(sample);
  return (scratch == 0 ? stored : made).subspan(skipped, count * row_bytes(row));
}

}  // namespace headrace
