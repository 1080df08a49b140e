#include "data/source/detail/byte_stream.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "data/store/descriptor.h"

namespace headrace::detail {
namespace {

int open_for_reading(const std::string& path) {
  const int descriptor = ::open(path.c_str(), kOpenToRead);
  if (descriptor < 0) {
    const int reason = errno;
    fail(reason == ENOENT ? ErrorCode::not_found : ErrorCode::io, "data: cannot open {}: {}", path,
         system_message(reason));
  }
  return descriptor;
}

}  // namespace

struct ByteStream::Impl {
  explicit Impl(const std::filesystem::path& where) : path(where.string()), file(open_for_reading(path)) {}
  ~Impl() {
    if (inflating) inflateEnd(&zlib);
  }

  void refill();
  std::size_t read_plain(std::span<std::uint8_t> target);
  std::size_t read_gzip(std::span<std::uint8_t> target);
  void start_gzip();
  bool next_member();

  const std::string path;
  const Descriptor file;
  std::uint64_t stored_size = 0;
  std::array<std::uint8_t, 1 << 16> buffer;
  std::span<const std::uint8_t> waiting;  // In the buffer, read from the file and not yet used.
  bool at_end = false;                    // The file has no more bytes than those waiting.
  bool gzip = false;
  bool inflating = false;  // zlib holds memory.
  bool finished = false;   // The last gzip member is inflated and its checksum verified.
  z_stream zlib{};
};

// Makes at least one byte wait, unless the file ends.
void ByteStream::Impl::refill() {
  while (waiting.empty() && !at_end) {
    const ssize_t count = ::read(file.number(), buffer.data(), buffer.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      fail(ErrorCode::io, "data: cannot read {}: {}", path, system_message(errno));
    }
    at_end = count == 0;
    waiting = std::span{buffer}.first(static_cast<std::size_t>(count));
  }
}

std::size_t ByteStream::Impl::read_plain(std::span<std::uint8_t> target) {
  std::size_t done = 0;
  while (done < target.size()) {
    refill();
    if (waiting.empty()) break;
    const std::size_t count = std::min(waiting.size(), target.size() - done);
    std::copy_n(waiting.begin(), count, target.begin() + static_cast<std::ptrdiff_t>(done));
    waiting = waiting.subspan(count);
    done += count;
  }
  return done;
}

void ByteStream::Impl::start_gzip() {
  constexpr int kGzipOnly = 16;  // Added to the window bits: a gzip header, verified checksum and size.
  if (inflateInit2(&zlib, MAX_WBITS + kGzipOnly) != Z_OK) {
    fail(ErrorCode::out_of_memory, "data: {}: no memory to inflate it", path);
  }
  inflating = true;
  gzip = true;
}

// gzip files may be concatenated. Anything else after a member is damage.
bool ByteStream::Impl::next_member() {
  refill();
  if (waiting.empty()) return false;
  if (waiting.front() != 0x1f) fail(ErrorCode::corrupt_data, "data: {}: trailing bytes after the gzip data", path);
  inflateReset(&zlib);
  return true;
}

std::size_t ByteStream::Impl::read_gzip(std::span<std::uint8_t> target) {
  std::size_t done = 0;
  while (done < target.size() && !finished) {
    refill();
    if (waiting.empty()) {
      fail(ErrorCode::corrupt_data, "data: {}: truncated gzip: it ends after {} bytes, in the middle of its data", path,
           stored_size);
    }
    const std::size_t room =
        std::min<std::size_t>(target.size() - done, std::numeric_limits<decltype(zlib.avail_out)>::max());
    zlib.next_in = const_cast<Bytef*>(waiting.data());  // zlib only reads it.
    zlib.avail_in = static_cast<uInt>(waiting.size());
    zlib.next_out = target.data() + done;
    zlib.avail_out = static_cast<uInt>(room);
    const int outcome = inflate(&zlib, Z_NO_FLUSH);
    waiting = waiting.last(zlib.avail_in);
    done += room - zlib.avail_out;
    if (outcome == Z_STREAM_END) {
      finished = !next_member();
    } else if (outcome == Z_MEM_ERROR) {
      fail(ErrorCode::out_of_memory, "data: {}: no memory to inflate it", path);
    } else if (outcome != Z_OK && outcome != Z_BUF_ERROR) {
      fail(ErrorCode::corrupt_data, "data: {}: damaged gzip: {}", path, zlib.msg != nullptr ? zlib.msg : "bad data");
    }
  }
  return done;
}

ByteStream::ByteStream(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {
  struct stat status {};
  if (::fstat(impl_->file.number(), &status) != 0) {
    fail(ErrorCode::io, "data: cannot examine {}: {}", impl_->path, system_message(errno));
  }
  if (!S_ISREG(status.st_mode)) fail(ErrorCode::io, "data: {} is not a regular file", impl_->path);
  impl_->stored_size = static_cast<std::uint64_t>(status.st_size);
  impl_->refill();
  const auto& first = impl_->waiting;
  if (first.size() >= 2 && first[0] == 0x1f && first[1] == 0x8b) impl_->start_gzip();
}

ByteStream::~ByteStream() = default;
ByteStream::ByteStream(ByteStream&&) noexcept = default;

std::size_t ByteStream::read(std::span<std::uint8_t> target) {
  return impl_->gzip ? impl_->read_gzip(target) : impl_->read_plain(target);
}

bool ByteStream::is_gzip() const {
  return impl_->gzip;
}
std::uint64_t ByteStream::stored_size() const {
  return impl_->stored_size;
}

std::uint64_t ByteStream::size_max() const {
  constexpr std::uint64_t kRatioMax = 1032;
  std::uint64_t size = 0;
  if (!impl_->gzip) return impl_->stored_size;
  if (__builtin_mul_overflow(impl_->stored_size, kRatioMax, &size)) return std::numeric_limits<std::uint64_t>::max();
  return size;
}

}  // namespace headrace::detail
