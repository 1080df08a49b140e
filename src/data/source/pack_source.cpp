
#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "data/source/detail/image_files.h"
#include "data/source/detail/scheme.h"
#include "data/source/field_bytes.h"
#include "data/source/pack_shards.h"
#include "data/source/sources.h"
#include "data/store/file_name.h"
#include "data/store/folder.h"
#include "data/store/pack_file.h"
#include "data/store/row_blocks.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;

// The samples of one split, wherever they lie.
class PackSource final : public Source, ImageRows, ImageSizes, KnownSamples, StoredNames {
 public:
  PackSource(const Path& path, Split split, const FileCalls& calls);

  std::int64_t size() const override { return std::ssize(places_); }
  const SourceInfo& info() const override { return info_; }
  void read(std::int64_t index, Sample& sample) const override;
  Capabilities capabilities() const override;
  Payload outline(std::int64_t index) const override;
  ImageSize image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const override;
  std::span<const std::uint8_t> read_rows(std::int64_t index, int first, int count,
                                          std::vector<std::uint8_t>& buffer) const override;
  std::int64_t label(std::int64_t index) const override { return row(index).label; }
  std::int64_t sample_bytes(std::int64_t index) const override { return static_cast<std::int64_t>(row(index).size); }
  std::string name(std::int64_t index) const override {
    const Place& place = at(index);
    return fmt::format("{}:{}", printable_name(shards_[place.shard].path().native()),
                       printable_name(stored_name(index)));
  }
  std::string stored_name(std::int64_t index) const override {
    const Place& place = at(index);
    return std::string(shards_[place.shard].name(place.row));
  }

 private:
  struct Place {
    std::uint32_t shard, row;
  };

  bool is_sound(const PackRow& row) const;
  bool is_encoded() const { return form_ == static_cast<std::uint8_t>(ImageForm::encoded); }
  std::vector<std::int64_t> samples_of_shards() const;
  std::vector<std::string> class_names() const;
  std::int64_t num_classes() const;
  void take_fields();
  void take_shape(const PackRow& row, const Path& path);
  void check_index(std::int64_t index) const;
  const Place& at(std::int64_t index) const { return places_[static_cast<std::size_t>(index)]; }
  const PackRow& row(std::int64_t index) const { return shards_[at(index).shard].rows()[at(index).row]; }

  std::vector<PackFile> shards_;
  std::vector<Place> places_;
  int height_ = 0, width_ = 0, channels_ = 0;  // 0 x 0: each image has a size of its own.
  std::uint8_t form_ = 0;
  std::optional<FieldBytes> fields_;  // None: images and labels.
  std::optional<std::size_t> label_;  // Of the fields, the class.
  SourceInfo info_;
};

PackSource::PackSource(const Path& path, Split split, const FileCalls& calls) {
  for (const Path& shard : pack_shards(path)) shards_.emplace_back(shard, calls);
  take_fields();
  std::string names;
  std::vector<std::int64_t> sizes;
  for (std::uint32_t shard = 0; shard < shards_.size(); ++shard) {
    const PackFile& file = shards_[shard];
    if (file.classes() != shards_.front().classes()) {
      fail(ErrorCode::corrupt_data, "data: {} and {} have different classes", printable_name(file.path().native()),
           printable_name(shards_.front().path().native()));
    }
    for (std::uint32_t i = 0; i < file.rows().size(); ++i) {
      const PackRow& row = file.rows()[i];
      if (row.split != static_cast<std::uint8_t>(split)) continue;
      take_shape(row, file.path());
      places_.push_back({shard, i});
      names.append(file.name(i)).push_back('\0');
      sizes.push_back(row.size);
    }
  }
  if (places_.empty()) return;
  if (fields_) names += shards_.front().schema().text();
  info_ = {.schema = fields_ ? shards_.front().schema() : Schema::image_and_labels(height_, width_, channels_),
           .num_classes = num_classes(),
           .class_names = class_names(),
           .fingerprint = detail::fingerprint_of(names, sizes),
           .shards = samples_of_shards()};
}

// Rows are of images in blocks alone; of other fields only reading tells the shape.
Capabilities PackSource::capabilities() const {
  const bool in_blocks = !places_.empty() && has_blocks(row(0));
  return {.rows = in_blocks ? this : nullptr, .sizes = fields_ ? nullptr : this, .known = this, .names = this};
}

std::vector<std::int64_t> PackSource::samples_of_shards() const {
  std::vector<std::int64_t> samples(shards_.size());
  for (const Place& place : places_) ++samples[place.shard];
  std::erase(samples, 0);  // Of other splits only.
  return samples;
}

std::vector<std::string> PackSource::class_names() const {
  const auto& names = shards_.front().classes();
  const bool numbers = std::all_of(names.begin(), names.end(), [](const std::string& name) { return name.empty(); });
  return numbers ? std::vector<std::string>{} : names;
}

std::int64_t PackSource::num_classes() const {
  const std::int64_t classes = std::ssize(shards_.front().classes());
  return fields_ && classes == 0 ? kUnknownClasses : classes;
}

void PackSource::take_fields() {
  const Schema& schema = shards_.front().schema();
  for (const PackFile& file : shards_) {
    if (file.schema() == schema) continue;
    fail(ErrorCode::corrupt_data, "data: {} and {} have different fields", printable_name(file.path().native()),
         printable_name(shards_.front().path().native()));
  }
  if (schema.empty()) return;
  if (schema.is_image_and_labels()) {
    fail(ErrorCode::corrupt_data, "data: {} has images and labels alone as fields; such packs are of format {}",
         printable_name(shards_.front().path().native()), kPackFormat);
  }
  fields_.emplace(schema);
  label_ = schema.class_label();
}

bool PackSource::is_sound(const PackRow& row) const {
  if (fields_) return row.form == kPackFields && row.height == 0 && row.width == 0 && row.channels == 0;
  const std::uint64_t pixels = std::uint64_t{row.height} * row.width;
  if (row.form == static_cast<std::uint8_t>(ImageForm::encoded)) {
    return row.height == 0 && row.width == 0 && (row.channels == 1 || row.channels == 3);
  }
  if (row.form == static_cast<std::uint8_t>(ImageForm::pixels)) {
    return pixels > 0 && row.height <= 65'535 && row.width <= 65'535 && row.channels > 0 &&
           pixels * row.channels == row.size;
  }
  return has_sound_blocks(row);
}

// The first sample's is that of all; only images in blocks may differ in size, and then the source has none.
void PackSource::take_shape(const PackRow& row, const Path& path) {
  const std::string name = printable_name(path.native());
  if (row.label >= shards_.front().classes().size() && !fields_) {
    fail(ErrorCode::corrupt_data, "data: {} has a label {}; wanted 0 to {}", name, row.label,
         std::ssize(shards_.front().classes()) - 1);
  }
  const bool sound = is_sound(row), first = places_.empty();
  const bool one_size = first || (height_ == static_cast<int>(row.height) && width_ == static_cast<int>(row.width));
  const bool alike =
      fields_ || first || (form_ == row.form && channels_ == row.channels && (one_size || has_blocks(row)));
  if (!sound || !alike) {
    fail(ErrorCode::corrupt_data, "data: {} has a sample of {} bytes as {} x {} x {} of form {}{}", name, row.size,
         row.height, row.width, row.channels, row.form, sound ? ", and others before it" : "");
  }
  form_ = row.form;
  if (fields_) return;
  height_ = one_size ? static_cast<int>(row.height) : 0;
  width_ = one_size ? static_cast<int>(row.width) : 0;
  channels_ = row.channels;
}

void PackSource::check_index(std::int64_t index) const {
  if (index < 0 || index >= size()) {
    fail(ErrorCode::invalid_argument, "data: sample {}: there are {} samples", index, size());
  }
}

void PackSource::read(std::int64_t index, Sample& sample) const {
  std::vector<std::uint8_t>& buffer = sample.buffer(0);
  check_index(index);
  if (fields_) {
    const Place& place = at(index);
    const PackedBytes whole = shards_[place.shard].read(place.row, buffer);
    const auto fault = fields_->locate(std::as_bytes(whole.bytes), sample.payloads());
    if (fault) refuse_sample(*fault, name(index));
    const auto told = label_ ? class_in(sample[*label_]) : std::nullopt;  // What is no class whoever loads it refuses.
    if (told && *told != label(index)) {
      fail(ErrorCode::corrupt_data, "data: {}: its label is {}; the pack's table says {}", name(index), *told,
           label(index));
    }
    return;
  }
  sample.set_label(label(index));
  if (const PackRow& told = row(index); has_blocks(told)) {
    const auto height = static_cast<int>(told.height);
    return sample.image().set_pixels(read_rows(index, 0, height, buffer), height, told.width, channels_);
  }
  const Place& place = at(index);
  const PackedBytes read = shards_[place.shard].read(place.row, buffer);
  if (is_encoded()) return sample.image().set_file(read.bytes, read.index);
  sample.image().set_pixels(read.bytes, height_, width_, channels_);
}

Payload PackSource::outline(std::int64_t index) const {
  check_index(index);
  return Payload::of_pixels({}, row(index).height, row(index).width, channels_);
}

ImageSize PackSource::image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const {
  check_index(index);
  const PackRow& told = row(index);
  if (!is_encoded()) return {static_cast<int>(told.height), static_cast<int>(told.width)};
  const Place& place = at(index);
  return detail::size_in_header(told.size, [&](std::int64_t bytes) {
    return shards_[place.shard].read_front(place.row, static_cast<std::size_t>(bytes), buffer);
  });
}

std::span<const std::uint8_t> PackSource::read_rows(std::int64_t index, int first, int count,
                                                    std::vector<std::uint8_t>& buffer) const {
  check_index(index);
  const Place& place = at(index);
  return shards_[place.shard].read_rows(place.row, static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(count),
                                        buffer);
}

}  // namespace

std::vector<Path> pack_shards(const Path& path) {
  std::error_code reason;
  if (!std::filesystem::is_directory(path, reason)) return {path};  // What it is instead, opening it tells.
  std::vector<Path> shards;
  for (const FolderEntry& entry : list_folder(path)) {
    const Path name = entry.name;
    if (entry.kind == FolderEntry::Kind::file && name.extension() == ".pack") shards.push_back(path / name);
  }
  if (shards.empty()) fail(ErrorCode::not_found, "data: no file *.pack in {}", printable_name(path.native()));
  return shards;
}

namespace {

bool pack_has(const Path& path, Split split) {
  for (const Path& shard : pack_shards(path)) {
    const PackFile file{shard};
    const auto is_of_split = [split](const PackRow& row) { return row.split == static_cast<std::uint8_t>(split); };
    if (std::any_of(file.rows().begin(), file.rows().end(), is_of_split)) return true;
  }
  return false;
}

}  // namespace

std::unique_ptr<Source> detail::open_pack(const Path& path, Split split, const FileCalls& calls) {
  auto source = std::make_unique<PackSource>(path, split, calls);
  return source->size() == 0 ? nullptr : std::move(source);
}

detail::Scheme detail::schemes::pack() {
  const auto open = [](const Path& path, Split split, const SampleLimits& /*limits*/) {
    return open_pack(path, split, FileCalls::system());
  };
  return {"pack", "PATH", "what was packed", pack_has, open};
}

}  // namespace headrace
