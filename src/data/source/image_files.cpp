#include "data/source/detail/image_files.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/source/sources.h"
#include "data/store/file_name.h"
#include "media/codec/image_size.h"

namespace headrace::detail {
namespace {

using Path = std::filesystem::path;

// Keys that are told of at once.
constexpr std::size_t kExpectedMax = 64;

class ImageFiles final : public Source, ImageSizes, KnownSamples, Expecting, StoredNames {
 public:
  ImageFiles(Listing listing, std::unique_ptr<const Store> files, Path index_file)
      : listing_(std::move(listing)), files_(std::move(files)) {
    info_.schema = Schema::image_and_labels(0, 0, 3);
    info_.num_classes = std::ssize(listing_.classes);
    info_.class_names = class_names();
    info_.remarks = listing_.remarks;
    info_.fingerprint = fingerprint();
    info_.index_file = std::move(index_file);
  }

  std::int64_t size() const override { return std::ssize(listing_.images); }
  const SourceInfo& info() const override { return info_; }
  Capabilities capabilities() const override {
    return {.sizes = this, .known = this, .expecting = this, .names = this};
  }

  void read(std::int64_t index, Sample& sample) const override {
    if (index < 0 || index >= size()) {
      fail(ErrorCode::invalid_argument, "data: sample {}: there are {} samples", index, size());
    }
    const Listing::Image& image = at(index);
    sample.image().set_file(front(index, image.size, sample.buffer(0)));
    sample.set_label(image.label);
  }
  ImageSize image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const override {
    const std::int64_t size = at(index).size;
    return size_in_header(size, [&](std::int64_t bytes) { return front(index, bytes, buffer); });
  }
  std::int64_t label(std::int64_t index) const override { return at(index).label; }
  std::int64_t sample_bytes(std::int64_t index) const override { return at(index).size; }
  void expect(std::span<const std::int64_t> indices) const noexcept override {
    std::array<const char*, kExpectedMax> keys{};
    for (std::size_t from = 0; from < indices.size(); from += kExpectedMax) {
      const auto part = indices.subspan(from, std::min(kExpectedMax, indices.size() - from));
      std::transform(part.begin(), part.end(), keys.begin(), [this](std::int64_t index) { return key(index); });
      files_->expect(std::span{keys}.first(part.size()));
    }
  }
  std::string name(std::int64_t index) const override { return files_->text_of(key(index)); }
  std::string stored_name(std::int64_t index) const override {
    if (listing_.classes_in_names) return key(index);
    const std::string& word = listing_.classes[at(index).label];
    return (word.empty() ? fmt::format("{}", at(index).label) : below_folder(word)) + "/" + below_folder(key(index));
  }

 private:
  std::vector<std::string> class_names() const {
    std::vector<std::string> names;
    for (const std::string& name : listing_.classes) {
      if (name.empty()) return {};
      names.push_back(printable_name(name));
    }
    return names;
  }
  std::uint64_t fingerprint() const {
    std::vector<std::int64_t> sizes;
    sizes.reserve(listing_.images.size());
    for (const Listing::Image& image : listing_.images) sizes.push_back(image.size);
    const std::uint64_t of_names = fingerprint_of(listing_.names, sizes);
    if (listing_.classes_in_names) return of_names;
    Xxh3Stream stream;
    stream.update(std::as_bytes(std::span{&of_names, 1}));
    for (const Listing::Image& image : listing_.images) stream.update(std::as_bytes(std::span{&image.label, 1}));
    return stream.digest();
  }
  const Listing::Image& at(std::int64_t index) const { return listing_.images[static_cast<std::size_t>(index)]; }
  const char* key(std::int64_t index) const { return listing_.names.data() + at(index).name_at; }
  // The first `bytes` of the file, of those it had when it was listed.
  std::span<const std::uint8_t> front(std::int64_t index, std::int64_t bytes, std::vector<std::uint8_t>& buffer) const {
    const auto found = files_->get(key(index), {.size = bytes, .whole_size = at(index).size}, buffer);
    if (found.empty()) fail(ErrorCode::corrupt_data, "data: {} is empty", name(index));
    return found;
  }

  const Listing listing_;
  const std::unique_ptr<const Store> files_;
  SourceInfo info_;
};

}  // namespace

std::unique_ptr<Source> open_image_files(Listing listing, std::unique_ptr<const Store> files, Path index_file) {
  return std::make_unique<ImageFiles>(std::move(listing), std::move(files), std::move(index_file));
}

ImageSize size_in_header(std::int64_t bytes,
                         const std::function<std::span<const std::uint8_t>(std::int64_t bytes)>& read_front) {
  constexpr std::int64_t kFrontBytes = 4096;  // A page; headers with a thumbnail or a colour profile are longer.
  constexpr std::int64_t kHeaderMax = std::int64_t{2} << 20;  // A longer one tells no size.
  for (std::int64_t front = std::min(bytes, kFrontBytes);;) {
    const codec::HeaderSize size = codec::header_size(read_front(front));
    const auto wanted = static_cast<std::int64_t>(size.wanted);
    if (wanted == 0 || wanted > std::min(bytes, kHeaderMax)) return {size.height, size.width};
    front = std::min(bytes, std::max(wanted, 2 * front));
  }
}

std::string below_folder(std::string_view name) {
  std::string below;
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (!part.empty() && part != "." && part != "..") below.append(below.empty() ? "" : "/").append(part);
    at = end + 1;
  }
  return below.empty() ? "_" : below;
}

}  // namespace headrace::detail
