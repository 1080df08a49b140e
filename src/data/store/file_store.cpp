#include "data/store/file_store.h"

#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/scratch.h"
#include "data/store/detail/patient_read.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

int open_folder(const std::filesystem::path& path) {
  const int number = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (number < 0) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot open the folder {}: {}",
         printable_name(path.native()), system_message(reason));
  }
  return number;
}

std::string amount(const ByteRange& range) {
  return range.size ? fmt::format("{} bytes", *range.size) : "all";
}

}  // namespace

FileStore::FileStore(std::filesystem::path root, const FileCalls& calls)
    : root_(std::move(root)), folder_(open_folder(root_)), calls_(&calls) {}

std::string FileStore::text_of(const char* key) const {
  return printable_name((root_ / key).native());
}

std::span<const std::uint8_t> FileStore::get(const char* key, const ByteRange& range,
                                             std::vector<std::uint8_t>& buffer) const {
  if (range.offset < 0 || range.size.value_or(0) < 0) {
    fail(ErrorCode::invalid_argument, "store: {}: wanted {} from byte {} on; neither may be negative", text_of(key),
         amount(range), range.offset);
  }
  const std::int64_t bytes =
      patiently(key, [&](const detail::PatientRead& reading) { return try_get(reading, key, range, buffer); });
  return std::span{buffer}.first(static_cast<std::size_t>(bytes));
}

std::int64_t FileStore::size(const char* key) const {
  return patiently(key, [&](const detail::PatientRead&) -> std::variant<std::int64_t, Refusal> {
    const auto opened = open(key);
    if (const auto* refusal = std::get_if<Refusal>(&opened)) return *refusal;
    return std::get<OpenFile>(opened).size;
  });
}

// What `attempt` gives, tried anew while what it is refused may pass.
template <class Attempt>
std::int64_t FileStore::patiently(const char* key, const Attempt& attempt) const {
  detail::PatientRead reading{*calls_};
  for (;;) {
    const std::variant<std::int64_t, Refusal> outcome = attempt(reading);
    const auto* refusal = std::get_if<Refusal>(&outcome);
    if (refusal == nullptr) return std::get<std::int64_t>(outcome);
    if (reading.again(refusal->reason)) continue;
    fail(refusal->reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "store: cannot {} {}: {}", refusal->call,
         text_of(key), detail::reading_failure(refusal->reason, reading.tries()));
  }
}

// What is wrong with the file itself is thrown, here and below.
std::variant<FileStore::OpenFile, FileStore::Refusal> FileStore::open(const char* key) const {
  Descriptor file{calls_->open_at(folder_.number(), key, kOpenToRead)};
  if (file.number() < 0) return Refusal{"open", errno};
  struct stat status {};
  if (calls_->status(file.number(), status) != 0) return Refusal{"examine", errno};
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::io, "store: {} is not a regular file", text_of(key));
  return OpenFile{std::move(file), status.st_size};
}

// How many bytes of a file of this size the range means.
std::int64_t FileStore::wanted_of(const char* key, const ByteRange& range, std::int64_t file_size) const {
  if (range.whole_size && *range.whole_size != file_size) {
    fail(ErrorCode::corrupt_data, "store: {} has {} bytes; it had {} when it was listed", text_of(key), file_size,
         *range.whole_size);
  }
  const std::int64_t left = file_size - range.offset;  // Below 0: the file ends before the range begins.
  const std::int64_t wanted = range.size.value_or(left);
  if (left < 0 || wanted > left) {
    fail(ErrorCode::corrupt_data, "store: {} has {} bytes; wanted {} from byte {} on", text_of(key), file_size,
         amount(range), range.offset);
  }
  if (wanted > kBytesMax) {
    fail(ErrorCode::unsupported, "store: {}: wanted {} bytes; at most {} are read at once", text_of(key), wanted,
         kBytesMax);
  }
  return wanted;
}

std::variant<std::int64_t, FileStore::Refusal> FileStore::try_get(const detail::PatientRead& reading, const char* key,
                                                                  const ByteRange& range,
                                                                  std::vector<std::uint8_t>& buffer) const {
  const auto opened = open(key);
  if (const auto* refusal = std::get_if<Refusal>(&opened)) return *refusal;
  const auto& file = std::get<OpenFile>(opened);
  const std::int64_t wanted = wanted_of(key, range, file.size);
  // At the file's end one byte more than it promised, which shows that there is more.
  const std::int64_t asked = wanted + (range.offset + wanted == file.size ? 1 : 0);
  const std::int64_t got =
      reading.fill(file.descriptor.number(), static_cast<std::uint64_t>(range.offset), scratch_of(buffer, asked));
  if (got < 0) return Refusal{"read", errno};
  if (got < wanted) {
    fail(ErrorCode::corrupt_data, "store: {} shrank while it was read: {} of {} bytes from byte {} on are left",
         text_of(key), got, wanted, range.offset);
  }
  if (got > wanted) {
    fail(ErrorCode::corrupt_data, "store: {} grew beyond {} bytes while it was read", text_of(key), file.size);
  }
  return wanted;
}

}  // namespace headrace
