
#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "core/hardware/machine.h"
#include "data/source/detail/byte_stream.h"
#include "data/source/detail/scheme.h"
#include "data/source/sources.h"

namespace headrace {
namespace {

using detail::ByteStream;

constexpr std::uint32_t kImagesMagic = 0x00000803;  // Unsigned bytes, three dimensions.
constexpr std::uint32_t kLabelsMagic = 0x00000801;  // Unsigned bytes, one dimension.

// One IDX file: its dimensions and all its bytes.
struct IdxArray {
  std::string name;  // Of the file, without its folder.
  std::vector<std::int64_t> dimensions;
  std::vector<std::uint8_t> values;
};

// One whose header was read and whose values were not.
struct OpenedIdx {
  OpenedIdx(const std::filesystem::path& where, std::uint32_t magic);

  std::filesystem::path path;
  ByteStream stream;
  std::vector<std::int64_t> dimensions;
  std::uint64_t promised;  // Bytes of its values.
};

std::optional<std::uint32_t> read_big_endian(ByteStream& stream) {
  std::array<std::uint8_t, 4> bytes{};
  if (stream.read(bytes) != bytes.size()) return std::nullopt;
  return static_cast<std::uint32_t>(bytes[0]) << 24 | static_cast<std::uint32_t>(bytes[1]) << 16 |
         static_cast<std::uint32_t>(bytes[2]) << 8 | static_cast<std::uint32_t>(bytes[3]);
}

std::vector<std::int64_t> read_header(ByteStream& stream, const std::string& path, std::uint32_t magic) {
  const auto next = [&] {
    const auto value = read_big_endian(stream);
    if (!value) fail(ErrorCode::corrupt_data, "data: {}: truncated: it ends within the IDX header", path);
    return *value;
  };
  const std::uint32_t found = next();
  if (found != magic) {
    fail(ErrorCode::corrupt_data, "data: {}: wrong magic {:#010x}; an IDX file of this kind begins with {:#010x}", path,
         found, magic);
  }
  std::vector<std::int64_t> dimensions(magic & 0xff);
  for (auto& dimension : dimensions) {
    dimension = next();
    if (dimension == 0) fail(ErrorCode::corrupt_data, "data: {}: a dimension is 0; there is nothing in it", path);
  }
  return dimensions;
}

// Bytes that the header promises, refused when nothing here could hold them.
std::uint64_t promised_bytes(const std::vector<std::int64_t>& dimensions, const std::string& path) {
  std::uint64_t limit = std::uint64_t{4} << 30;
  if (const auto memory = detect_machine().memory_limit) limit = std::min(limit, static_cast<std::uint64_t>(*memory));
  std::uint64_t promised = 1;
  for (const std::int64_t dimension : dimensions) {
    if (__builtin_mul_overflow(promised, static_cast<std::uint64_t>(dimension), &promised)) {
      fail(ErrorCode::out_of_memory, "data: {}: its header promises more than 2^64 bytes; at most {} can be held", path,
           limit);
    }
  }
  if (promised > limit) {
    fail(ErrorCode::out_of_memory, "data: {}: its header promises {} bytes; at most {} can be held", path, promised,
         limit);
  }
  return promised;
}

[[noreturn]] void fail_truncated(const std::string& path, std::uint64_t promised, const std::string& found) {
  fail(ErrorCode::corrupt_data, "data: {}: truncated: its header promises {} bytes, {}", path, promised, found);
}

// A lying header costs no memory: the buffer grows with what really comes out of the file.
std::vector<std::uint8_t> read_values(ByteStream& stream, const std::string& path, std::uint64_t promised) {
  if (promised > stream.size_max()) {
    fail_truncated(path, promised, fmt::format("a file of {} bytes cannot hold them", stream.stored_size()));
  }
  constexpr std::uint64_t kFirstStep = 1 << 20;
  std::vector<std::uint8_t> values;
  while (values.size() < promised) {
    const std::size_t had = values.size();
    const std::uint64_t step = stream.is_gzip() ? std::max<std::uint64_t>(kFirstStep, had) : promised;
    values.resize(std::min<std::uint64_t>(promised, had + step));
    const std::size_t got = stream.read(std::span{values}.subspan(had));
    if (had + got < values.size()) fail_truncated(path, promised, fmt::format("{} came", had + got));
  }
  std::array<std::uint8_t, 1> beyond{};
  if (stream.read(beyond) != 0) {
    fail(ErrorCode::corrupt_data, "data: {}: trailing bytes: there are more than the {} its header promises", path,
         promised);
  }
  return values;
}

OpenedIdx::OpenedIdx(const std::filesystem::path& where, std::uint32_t magic)
    : path(where),
      stream(where),
      dimensions(read_header(stream, where.string(), magic)),
      promised(promised_bytes(dimensions, where.string())) {}

IdxArray read_rest(OpenedIdx file) {
  std::vector<std::uint8_t> values = read_values(file.stream, file.path.string(), file.promised);
  return {file.path.filename().string(), std::move(file.dimensions), std::move(values)};
}

// A few bytes of gzip can hold gigabytes, so what the headers tell is checked before any of them is unpacked.
void check(const OpenedIdx& images, const OpenedIdx& labels, const SampleLimits& limits) {
  const std::int64_t image_count = images.dimensions[0], label_count = labels.dimensions[0];
  if (image_count != label_count) {
    fail(ErrorCode::corrupt_data, "data: {}: {} labels, {}: {} images", labels.path.filename().string(), label_count,
         images.path.filename().string(), image_count);
  }
  const std::int64_t height = images.dimensions[1], width = images.dimensions[2];
  constexpr std::int64_t kSideMax = std::numeric_limits<int>::max();
  if (height > kSideMax || width > kSideMax) {
    fail(ErrorCode::corrupt_data, "data: {}: images of {} x {} pixels; a side has at most {}", images.path.string(),
         height, width, kSideMax);
  }
  const std::int64_t pixels = height * width;  // A byte each.
  if (pixels > std::min(limits.pixels, limits.bytes)) {
    fail(ErrorCode::unsupported, "data: {}: images of {} x {}: {} pixels of a byte each; wanted at most {} ({})",
         images.path.string(), height, width, pixels, std::min(limits.pixels, limits.bytes),
         limits.pixels <= limits.bytes ? "data.max_pixels" : "data.max_sample_bytes");
  }
}

// The unpacked file where both exist: it is the faster one to read. nullopt: there is neither.
std::optional<std::filesystem::path> find_file(const std::filesystem::path& folder, const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    std::error_code ignored;  // A file that cannot even be examined is tried, so that opening it tells why.
    const auto status = std::filesystem::status(folder / candidate, ignored);
    if (status.type() != std::filesystem::file_type::not_found) return folder / candidate;
  }
  return std::nullopt;
}

std::string images_name(Split split) {
  return std::string(detail::idx_prefix(split)) + "-images-idx3-ubyte";
}
std::string labels_name(Split split) {
  return std::string(detail::idx_prefix(split)) + "-labels-idx1-ubyte";
}

// Images and labels of one split, whole in memory.
class IdxSource final : public Source, KnownSamples {
 public:
  IdxSource(IdxArray images, IdxArray labels)
      : images_(std::move(images)),
        labels_(std::move(labels)),
        height_(static_cast<int>(images_.dimensions[1])),
        width_(static_cast<int>(images_.dimensions[2])) {
    info_.schema = Schema::image_and_labels(height_, width_, 1);
    // The format does not tell how many classes there are; the largest label does.
    info_.num_classes = *std::max_element(labels_.values.begin(), labels_.values.end()) + std::int64_t{1};
    info_.fingerprint = hash_of_all();
    info_.in_memory = true;
  }

  std::int64_t size() const override { return images_.dimensions[0]; }
  const SourceInfo& info() const override { return info_; }

  void read(std::int64_t index, Sample& sample) const override {
    if (index < 0 || index >= size()) {
      fail(ErrorCode::invalid_argument, "data: {}: there are {} samples", name(index), size());
    }
    const auto bytes = static_cast<std::size_t>(height_) * static_cast<std::size_t>(width_);
    const auto at = static_cast<std::size_t>(index);
    const std::span image = std::span{images_.values}.subspan(at * bytes, bytes);
    sample.image().set_pixels(image, height_, width_, 1);
    sample.set_label(labels_.values[at]);
  }
  std::string name(std::int64_t index) const override { return fmt::format("{}[{}]", images_.name, index); }
  std::int64_t label(std::int64_t index) const override { return labels_.values[static_cast<std::size_t>(index)]; }
  Capabilities capabilities() const override { return {.known = this}; }

 private:
  // The pixels too: they are in memory, and 47 MB take 5 ms.
  std::uint64_t hash_of_all() const {
    Xxh3Stream stream;
    for (const IdxArray* array : {&images_, &labels_}) {
      stream.update(std::as_bytes(std::span{array->dimensions}));
      stream.update(std::as_bytes(std::span{array->values}));
    }
    return stream.digest();
  }

  IdxArray images_;
  IdxArray labels_;
  int height_, width_;
  SourceInfo info_;
};

}  // namespace

std::string_view detail::idx_prefix(Split split) {
  return split == Split::test ? "t10k" : choice_name(split);
}

namespace {

bool idx_has(const std::filesystem::path& folder, Split split) {
  return find_file(folder, images_name(split)) || find_file(folder, labels_name(split));
}

std::unique_ptr<Source> open_idx(const std::filesystem::path& folder, Split split, const SampleLimits& limits) {
  const auto images_at = find_file(folder, images_name(split)), labels_at = find_file(folder, labels_name(split));
  if (!images_at && !labels_at) return nullptr;
  if (!images_at || !labels_at) {
    fail(ErrorCode::not_found, "data: neither {0} nor {0}.gz in {1}",
         images_at ? labels_name(split) : images_name(split), folder.string());
  }
  OpenedIdx labels{*labels_at, kLabelsMagic};
  OpenedIdx images{*images_at, kImagesMagic};
  check(images, labels, limits);
  IdxArray label_array = read_rest(std::move(labels));  // The small file first: nobody waits for the large one.
  return std::make_unique<IdxSource>(read_rest(std::move(images)), std::move(label_array));
}

}  // namespace

detail::Scheme detail::schemes::idx() {
  return {"idx", "DIR", "files train-images-idx3-ubyte[.gz], val-... and for test t10k-...", idx_has, open_idx};
}

}  // namespace headrace
