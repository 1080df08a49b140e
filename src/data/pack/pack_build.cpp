#include "data/pack/pack_build.h"

#include <headrace/source.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/hash.h"
#include "data/pack/detail/packed_image.h"
#include "data/source/pack_shards.h"
#include "data/source/sample_reader.h"
#include "data/store/file_name.h"
#include "data/store/pack_file.h"
#include "data/store/pack_writer.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;

constexpr std::int64_t kClassesMax = std::int64_t{1} << 24;  // Each has a line in the file, and a name in memory.
constexpr std::size_t kBlock = 16;  // Samples that are read and indexed before they are written.

struct Wanted {
  const SampleReader* source;
  std::int64_t index;
  Split split;
};

std::string name_of(const SampleReader& source, std::int64_t index) {
  const StoredNames* const names = source.can().names;
  const std::string name = names == nullptr ? "" : names->stored_name(index);
  return name.empty() ? fmt::format("{}", index) : name;
}

// Names are told apart within a split.
std::string key_of(Split split, std::string_view name) {
  return static_cast<char>('0' + static_cast<int>(split)) + std::string(name);
}

SplitSources opened(const std::string& uri) {
  SplitSources sources;
  for (const Choice<Split>& split : choices(Split{})) {
    auto source = split.value == Split::train ? open_source(uri, split.value) : find_source(uri, split.value);
    if (source != nullptr) sources.push_back({split.value, std::move(source)});
  }
  return sources;
}

// The splits that the source has, and what they have in common.
struct Data {
  Data(const PackPlan& plan, SplitSources sources) : splits(std::move(sources)) {
    const std::string& uri = plan.source;
    take_fields(plan);
    Xxh3Stream stream;
    for (const auto& [split, source] : splits) {
      // What an earlier version began, which packed val as test, is other data.
      if (split == Split::val) stream.update(std::as_bytes(std::span{&split, 1}));
      if (source->size() == kUnknownSize) {
        fail(ErrorCode::invalid_argument, "data: {} does not tell how many samples it has; a pack holds a known number",
             uri);
      }
      if (plan.form == PackForm::stored && source->capabilities().rows != nullptr &&
          stored_shape(source->info().schema).height == 0) {
        fail(ErrorCode::invalid_argument, "data: {} holds decoded images; --form raw or --form lz4 packs them", uri);
      }
      const std::uint64_t own = source->info().fingerprint;
      stream.update(std::as_bytes(std::span{&own, 1}));
      if (classes.empty()) classes = source->info().class_names;
    }
    if (plan.form != PackForm::stored) {  // Else it is what packs were begun with before there were others.
      const std::int64_t form[] = {static_cast<std::int64_t>(plan.form), plan.short_side};
      stream.update(std::as_bytes(std::span{form}));
    }
    fingerprint = stream.digest();
    std::size_t count = classes.size();
    for (const auto& [split, source] : splits) {
      const std::int64_t told = source->info().num_classes;
      if (told != kUnknownClasses) {
        if (told > kClassesMax) {
          fail(ErrorCode::unsupported, "data: {} has {} classes; a pack takes at most {}", uri, told, kClassesMax);
        }
        count = std::max(count, static_cast<std::size_t>(told));
      } else if (schema.empty()) {
        fail(ErrorCode::invalid_argument,
             "data: {} does not tell its classes, and a pack of images and labels has them", uri);
      }
    }
    classes.resize(count);  // Without names where they have numbers only.
    for (const auto& [split, source] : splits) readers.emplace_back(*source);
  }

  // Other than images and labels.
  void take_fields(const PackPlan& plan) {
    const Schema first = splits.front().second->info().schema;
    for (const auto& [split, source] : splits) {
      const Schema& its = source->info().schema;
      if (its == first || (first.is_image_and_labels() && its.is_image_and_labels())) continue;
      fail(ErrorCode::invalid_argument, "data: {} has {} in one split and {} in another", plan.source, first.text(),
           its.text());
    }
    if (first.is_image_and_labels()) return;
    if (plan.form != PackForm::stored) {
      fail(ErrorCode::unsupported, "data: {} has {}; --form {} takes images and labels, wanted stored", plan.source,
           first.text(), choice_name(plan.form));
    }
    schema = first;
  }

  SplitSources splits;
  std::vector<SampleReader> readers;  // Of the splits' sources.
  Schema schema;                      // Empty: of images and labels.
  std::vector<std::string> classes;
  std::uint64_t fingerprint = 0;
};

struct FormOfPack {
  PackForm form = PackForm::stored;
  std::int64_t short_side = 0;
};

// Of a pack with such a sample.
FormOfPack form_of(const PackRow& row, std::span<const std::uint8_t> index) {
  if (!has_blocks(row)) return {};
  RowBlocksHead head{};
  if (index.size() >= sizeof head) std::memcpy(&head, index.data(), sizeof head);  // Else it is damaged.
  const bool raw = row.form == static_cast<std::uint8_t>(BlockForm::raw);
  return {raw ? PackForm::raw : PackForm::lz4, head.short_side};
}

std::string side_words(std::int64_t short_side) {
  return short_side == 0 ? "" : fmt::format(" --short-side {}", short_side);
}

class Packing {
 public:
  Packing(const PackPlan& plan, SplitSources sources) : plan_(plan), data_(plan, std::move(sources)) {}

  std::optional<PackSummary> run(const PackProgress& go_on);

 private:
  Path shard(std::int64_t number) const {
    return plan_.shard_bytes == 0 ? plan_.out : plan_.out / fmt::format("{:05d}.pack", number);
  }
  void find_whole_shards();
  void open_writer();
  void close_writer();
  std::vector<Wanted> missing() const;
  void check_form(const Path& path, const PackRow& row, std::span<const std::uint8_t> index) const;
  void check_form(const PackFile& file) const;
  void prepare_block(std::span<const Wanted> block);
  void write_block(std::span<const Wanted> block);

  const PackPlan& plan_;
  const Data data_;
  std::optional<FileLock> lock_;  // Of the folder of shards.
  std::optional<PackFileWriter> writer_;
  std::int64_t shard_ = 0;
  std::unordered_set<std::string> there_;
  std::array<detail::PackedImage, kBlock> prepared_;
  PackSummary summary_;
};

std::optional<PackSummary> Packing::run(const PackProgress& go_on) {
  if (plan_.shard_bytes > 0) find_whole_shards();
  open_writer();
  const std::vector<Wanted> all = missing();
  summary_.samples = std::ssize(there_);
  const std::int64_t total = summary_.samples + std::ssize(all);
  for (std::span<const Wanted> left = all; !left.empty();) {
    if (!go_on(summary_.samples, total)) return std::nullopt;
    const auto block = left.first(std::min(left.size(), kBlock));
    prepare_block(block);
    write_block(block);
    left = left.subspan(block.size());
  }
  if (writer_ && plan_.shard_bytes > 0 && writer_->rows().empty()) {  // Its shards were whole already.
    writer_.reset();
    std::filesystem::remove(partial_pack(shard(shard_)));
  }
  if (writer_) close_writer();
  return summary_;
}

void Packing::find_whole_shards() {
  std::error_code reason;
  std::filesystem::create_directories(plan_.out, reason);
  if (reason) fail(ErrorCode::io, "data: cannot make {}: {}", printable_name(plan_.out.native()), reason.message());
  lock_.emplace(plan_.out / "lock");
  for (; std::filesystem::exists(shard(shard_), reason); ++shard_) {
    const PackFile file{shard(shard_)};
    const bool same_data = plan_.append || file.fingerprint() == data_.fingerprint;
    if (!same_data || file.classes() != data_.classes) {
      fail(ErrorCode::invalid_argument, "data: {} has other {} than {}{}", printable_name(file.path().native()),
           same_data ? "classes" : "data", plan_.source, same_data ? "" : "; --append adds to it");
    }
    if (file.schema() != data_.schema) {
      fail(ErrorCode::invalid_argument, "data: {} has other fields than {}", printable_name(file.path().native()),
           plan_.source);
    }
    check_form(file);
    for (std::size_t i = 0; i < file.rows().size(); ++i)
      there_.insert(key_of(Split{file.rows()[i].split}, file.name(i)));
    ++summary_.files;
  }
}

void Packing::open_writer() {
  const auto mode = plan_.append ? PackFileWriter::Mode::append : PackFileWriter::Mode::fresh;
  std::error_code ignored;  // What cannot be examined the writer tells.
  if (plan_.append && std::filesystem::exists(shard(shard_), ignored)) check_form(PackFile{shard(shard_)});
  writer_.emplace(shard(shard_), data_.fingerprint, data_.classes, mode, data_.schema);
  if (!writer_->rows().empty()) check_form(shard(shard_), writer_->rows()[0], writer_->read_index(0));
  for (std::size_t i = 0; i < writer_->rows().size(); ++i) {
    there_.insert(key_of(Split{writer_->rows()[i].split}, writer_->name(i)));
  }
}

// One pack holds one form: `row` is of a sample that is there.
void Packing::check_form(const Path& path, const PackRow& row, std::span<const std::uint8_t> index) const {
  const FormOfPack found = form_of(row, index);
  if (found.form == plan_.form && found.short_side == plan_.short_side) return;
  fail(ErrorCode::invalid_argument, "data: {} holds images as --form {}{}, not {}{}", printable_name(path.native()),
       choice_name(found.form), side_words(found.short_side), choice_name(plan_.form), side_words(plan_.short_side));
}

void Packing::check_form(const PackFile& file) const {
  std::vector<std::uint8_t> buffer;
  if (!file.rows().empty()) check_form(file.path(), file.rows()[0], file.read(0, buffer).index);
}

void Packing::close_writer() {
  writer_->commit();
  writer_.reset();
  ++shard_;
  ++summary_.files;
}

std::vector<Wanted> Packing::missing() const {
  std::vector<Wanted> wanted;
  const bool has_test = data_.splits.back().first == Split::test;
  for (std::size_t at = 0; at < data_.splits.size(); ++at) {
    const Split split = data_.splits[at].first;
    const SampleReader& source = data_.readers[at];
    for (std::int64_t i = 0; i < source.size(); ++i) {
      // Else an append would hold val twice.
      if (split == Split::val && !has_test && there_.contains(key_of(Split::test, name_of(source, i)))) {
        fail(ErrorCode::invalid_argument,
             "data: {} holds {} as test, in {} it is val: earlier versions packed val as test; pack the data anew",
             printable_name(plan_.out.native()), printable_name(name_of(source, i)), plan_.source);
      }
      if (there_.empty() || !there_.contains(key_of(split, name_of(source, i)))) {
        wanted.push_back({&source, i, split});
      }
    }
  }
  return wanted;
}

void Packing::prepare_block(std::span<const Wanted> block) {
  std::atomic<std::size_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;  // Guarded by the mutex.
  const auto work = [&] {
    try {
      detail::ImagePacker packer{plan_.form, plan_.short_side};
      const detail::FieldsPacker fields{data_.schema};
      for (std::size_t i = next++; i < block.size(); i = next++) {
        if (data_.schema.empty()) {
          packer.make(*block[i].source, block[i].index, prepared_[i]);
        } else {
          fields.make(*block[i].source, block[i].index, prepared_[i]);
        }
        prepared_[i].name = name_of(*block[i].source, block[i].index);
        prepared_[i].row.split = static_cast<std::uint8_t>(block[i].split);
      }
    } catch (...) {
      next = block.size();
      std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::int64_t i = 1; i < plan_.threads; ++i) others.emplace_back(work);
    work();
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void Packing::write_block(std::span<const Wanted> block) {
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (!writer_) open_writer();
    const detail::PackedImage& packed = prepared_[i];
    writer_->add(packed.row, packed.name, packed.bytes, packed.index);
    ++summary_.samples;
    ++summary_.added;
    summary_.indexed += packed.entropy.empty() ? 0 : 1;
    summary_.bytes += std::ssize(packed.bytes);
    const bool full = plan_.shard_bytes > 0 && static_cast<std::int64_t>(writer_->bytes()) >= plan_.shard_bytes;
    if (full) close_writer();
  }
}

}  // namespace

std::optional<PackSummary> write_pack(const PackPlan& plan, const PackProgress& go_on) {
  return Packing{plan, opened(plan.source)}.run(go_on);
}

std::optional<PackSummary> write_pack(const PackPlan& plan, SplitSources sources, const PackProgress& go_on) {
  if (sources.empty()) fail(ErrorCode::invalid_argument, "data: nothing to pack");
  return Packing{plan, std::move(sources)}.run(go_on);
}

std::optional<PackCheck> verify_pack(const Path& path, const PackProgress& go_on) {
  PackCheck check;
  std::vector<PackFile> shards;
  std::int64_t total = 0;
  for (const Path& shard : pack_shards(path)) total += std::ssize(shards.emplace_back(shard).rows());
  std::vector<std::uint8_t> buffer;
  for (const PackFile& shard : shards) {
    for (std::size_t i = 0; i < shard.rows().size(); ++i) {
      if (!go_on(check.samples, total)) return std::nullopt;
      ++check.samples;
      try {
        const PackRow& row = shard.rows()[i];
        const PackedBytes read = shard.read(i, buffer);
        if (check.samples == 1) {
          const FormOfPack found = form_of(row, read.index);
          check.form = found.form, check.short_side = found.short_side;
        }
        const bool index_lost = read.index.size() != row.index_size;
        if (index_lost && has_blocks(row)) shard.fail_as_changed(i);
        check.unindexed += index_lost ? 1 : 0;
      } catch (const Error& error) {  // Counted: the others are looked at, too.
        if (check.damaged++ == 0) check.first = error.what();
      }
    }
  }
  return check;
}

}  // namespace headrace
