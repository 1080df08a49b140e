#include "data/store/pack_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/fail.h"
#include "core/base/fault_point.h"
#include "core/base/files.h"
#include "data/store/detail/positioned_read.h"
#include "data/store/file_name.h"
#include "data/store/pack_file.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using detail::read_at;

[[noreturn]] void fail_write(const fs::path& path, int reason) {
  fail(ErrorCode::io, "store: cannot write {}: {}", printable_name(path.native()), system_message(reason));
}

// Nobody else's: the kernel frees the lock when its holder dies.
int open_alone(const fs::path& path) {
  const int number = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (number < 0) fail_write(path, errno);
  const int refused = ::flock(number, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  struct stat held {
  }, named{};
  // Its holder may have finished and renamed it between the two calls.
  const bool same = refused == 0 && ::fstat(number, &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
                    held.st_ino == named.st_ino && held.st_dev == named.st_dev;
  if (same) return number;
  ::close(number);
  if (refused != 0 && refused != EWOULDBLOCK) fail_write(path, refused);
  fail(ErrorCode::io, "store: {} is being written by another process", printable_name(path.native()));
}

std::string fields_text(const Schema& schema) {
  return schema.empty() ? "images and labels" : schema.text();
}

void sync_folder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const int number = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (number < 0 && errno == EACCES) return;  // It may be written but not listed; the pack is whole there all the same.
  const bool synced = number >= 0 && (::fsync(number) == 0 || errno == EINVAL);
  const int reason = errno;
  if (number >= 0) ::close(number);
  if (!synced) fail_write(path, reason);
}

// The sample whose row is at byte `at` of a partial pack, if it is whole and sound.
class Recovered {
 public:
  bool read(int descriptor, std::uint64_t at, std::uint64_t end) {
    if (end - at < sizeof row || read_at(descriptor, at, std::as_writable_bytes(std::span{&row, 1})) != 0) return false;
    if (row.name_size == 0 || row.name_size > kPackNameBytesMax || row.at != at + sizeof row + row.name_size ||
        row.size > kPackSampleBytesMax || row.index_size > kPackIndexBytesMax || row.at > end ||
        std::uint64_t{row.size} + row.index_size > end - row.at) {
      return false;
    }
    name.resize(row.name_size);
    if (read_at(descriptor, at + sizeof row, std::as_writable_bytes(std::span{name})) != 0) return false;
    if (check_of(row, name) != row.check) return false;
    content_.resize(std::size_t{row.size} + row.index_size);
    if (read_at(descriptor, row.at, std::as_writable_bytes(std::span{content_})) != 0) return false;
    const auto bytes = std::span<const std::uint8_t>(content_);
    return xxh3(std::as_bytes(bytes.first(row.size))) == row.hash &&
           low_check_of(bytes.subspan(row.size)) == row.index_check;
  }

  PackRow row{};
  std::string name;

 private:
  std::vector<std::uint8_t> content_;
};

}  // namespace

fs::path partial_pack(const fs::path& path) {
  fs::path partial = path;
  partial += ".partial";
  return partial;
}

PackFileWriter::PackFileWriter(const fs::path& path, std::uint64_t fingerprint, const std::vector<std::string>& classes,
                               Mode mode, Schema schema)
    : path_(path),
      partial_(partial_pack(path)),
      fingerprint_(fingerprint),
      classes_(class_lines(classes)),
      schema_(std::move(schema)) {
  std::error_code ignored;  // What cannot be examined cannot be written either.
  const bool there = fs::exists(path, ignored);
  if (there && mode == Mode::fresh) {
    fail(ErrorCode::invalid_argument, "store: {} exists already; --append adds to it", printable_name(path.native()));
  }
  if (there) {
    take_whole();
  } else {
    descriptor_ = open_alone(partial_);
  }
  try {
    recover(mode);
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

PackFileWriter::~PackFileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

// A pack that is whole loses its end, and its name until it has one again.
void PackFileWriter::take_whole() {
  const PackFile whole{path_};
  if (class_lines(whole.classes()) != classes_) {
    fail(ErrorCode::invalid_argument, "store: {} has other classes than what is to be added",
         printable_name(path_.native()));
  }
  if (whole.schema() != schema_) {
    fail(ErrorCode::invalid_argument, "store: {} has samples of {}; wanted {}, as what is to be added",
         printable_name(path_.native()), fields_text(whole.schema()), fields_text(schema_));
  }
  std::error_code ignored;
  if (fs::exists(partial_, ignored)) {
    fail(ErrorCode::invalid_argument, "store: beside {} lies an unfinished {}; remove one of them",
         printable_name(path_.native()), printable_name(partial_.filename().native()));
  }
  if (::rename(path_.c_str(), partial_.c_str()) != 0) fail_write(path_, errno);
  descriptor_ = open_alone(partial_);
  if (::ftruncate(descriptor_, static_cast<off_t>(whole.data_end())) != 0) {
    const int reason = errno;
    ::close(descriptor_);
    fail_write(partial_, reason);
  }
}

std::vector<std::byte> PackFileWriter::front() const {
  return pack_front({{}, 0, low_check_of(classes_), fingerprint_, 0}, schema_);
}

void PackFileWriter::begin() {
  if (::ftruncate(descriptor_, 0) != 0) fail_write(partial_, errno);
  write(front());
}

// Keeps the samples that are whole, up to the first that is not.
void PackFileWriter::recover(Mode mode) {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_write(partial_, errno);
  const auto end = static_cast<std::uint64_t>(status.st_size);
  PackHead head{};
  if (end < sizeof head) return begin();
  const int reason = read_at(descriptor_, 0, std::as_writable_bytes(std::span{&head, 1}));
  if (reason != 0) fail_write(partial_, reason);
  const std::string name = printable_name(partial_.native());
  if (std::string_view(head.magic, sizeof head.magic) != kPackMagic || head.check != check_of(head)) {
    fail(ErrorCode::corrupt_data, "store: {} is no unfinished pack; move it away", name);
  }
  const bool same_data = mode == Mode::append || head.fingerprint == fingerprint_;
  if (!same_data || head.classes != low_check_of(classes_)) {
    fail(ErrorCode::invalid_argument, "store: {} was begun with other {}; remove it to begin anew", name,
         same_data ? "classes" : "data or in another form");
  }
  const std::vector<std::byte> wanted = front();
  std::vector<std::byte> fields(std::min<std::uint64_t>(end, wanted.size()) - sizeof head);
  if (read_at(descriptor_, sizeof head, fields) != 0) fail_write(partial_, EIO);
  const bool is_cut_off = end < wanted.size();
  const auto same_fields = std::equal(fields.begin(), fields.end(), wanted.begin() + sizeof head);
  const std::uint32_t format = schema_.empty() ? kPackFormat : kPackFieldsFormat;
  if (head.format != format || (!same_fields && !is_cut_off)) {
    fail(ErrorCode::invalid_argument, "store: {} was begun with other fields than {}; remove it to begin anew", name,
         fields_text(schema_));
  }
  if (is_cut_off) return begin();
  at_ = wanted.size();
  for (Recovered sample; sample.read(descriptor_, at_, end);) {
    rows_.push_back(sample.row);
    name_at_.push_back(names_.size());
    names_ += sample.name;
    at_ = sample.row.at + sample.row.size + sample.row.index_size;
  }
  if (::ftruncate(descriptor_, static_cast<off_t>(at_)) != 0) fail_write(partial_, errno);
}

std::string_view PackFileWriter::name(std::size_t sample) const noexcept {
  return std::string_view(names_).substr(name_at_[sample], rows_[sample].name_size);
}

std::vector<std::uint8_t> PackFileWriter::read_index(std::size_t sample) const {
  const PackRow& row = rows_[sample];
  std::vector<std::uint8_t> index(row.index_size);
  const int reason = read_at(descriptor_, row.at + row.size, std::as_writable_bytes(std::span{index}));
  if (reason != 0) {
    fail(ErrorCode::io, "store: cannot read {}: {}", printable_name(partial_.native()), system_message(reason));
  }
  return index;
}

void PackFileWriter::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(at_));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_write(partial_, errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    at_ += static_cast<std::uint64_t>(written);
  }
}

void PackFileWriter::add(PackRow row, std::string_view name, std::span<const std::uint8_t> bytes,
                         std::span<const std::uint8_t> index) {
  if (name.empty() || name.size() > kPackNameBytesMax || bytes.size() > kPackSampleBytesMax ||
      index.size() > kPackIndexBytesMax) {
    constexpr std::size_t kShown = 100;
    fail(ErrorCode::unsupported,
         "store: sample {}: {} bytes, a name of {} and an index of {} do not go into a pack, which takes {}, {} and {}",
         printable_name(name.substr(0, kShown)), bytes.size(), name.size(), index.size(), kPackSampleBytesMax,
         kPackNameBytesMax, kPackIndexBytesMax);
  }
  fault_point("pack.sample");
  row.at = at_ + sizeof row + name.size();
  row.hash = xxh3(std::as_bytes(bytes));
  row.size = static_cast<std::uint32_t>(bytes.size());
  row.index_size = static_cast<std::uint32_t>(index.size());
  row.index_check = low_check_of(index);
  row.name_size = static_cast<std::uint32_t>(name.size());
  row.check = check_of(row, name);
  write(std::as_bytes(std::span{&row, 1}));
  write(std::as_bytes(std::span{name}));
  write(std::as_bytes(bytes));
  write(std::as_bytes(index));
  rows_.push_back(row);
  name_at_.push_back(names_.size());
  names_ += name;
}

void PackFileWriter::commit() {
  fault_point("pack.table");
  PackTrailer trailer{rows_.size(), at_, names_.size(), classes_.size(), 0, 0, {}};
  Xxh3Stream hash;
  for (const auto part : {std::as_bytes(std::span<const PackRow>{rows_}), std::as_bytes(std::span<const char>{names_}),
                          std::as_bytes(std::span<const char>{classes_})}) {
    hash.update(part);
    write(part);
  }
  trailer.table_hash = hash.digest();
  trailer.check = check_of(trailer);
  kPackEnd.copy(trailer.magic, sizeof trailer.magic);
  write(std::as_bytes(std::span{&trailer, 1}));
  fault_point("write.sync");
  if (::fsync(descriptor_) != 0) fail_write(partial_, errno);
  fault_point("write.rename");
  if (::rename(partial_.c_str(), path_.c_str()) != 0) fail_write(path_, errno);
  fault_point("write.folder");
  sync_folder(path_);
  ::close(std::exchange(descriptor_, -1));
}

}  // namespace headrace
