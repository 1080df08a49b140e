#include "data/pack_build.h"

#include <headrace/error.h>
#include <headrace/source.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/hash.h"
#include "data/pack_shards.h"
#include "image/entropy_index.h"
#include "store/file_name.h"
#include "store/pack_file.h"
#include "store/pack_writer.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;

constexpr std::size_t kBlock = 16;  // Samples that are read and indexed before they are written.

struct Wanted {
  const Source* source;
  std::int64_t index;
  std::uint8_t split;
};

// A sample on its way to the pack; the buffers are used again.
struct Prepared {
  std::vector<std::uint8_t> buffer, index;
  Sample sample;
  std::string name;
};

std::string name_of(const Source& source, std::int64_t index) {
  const std::string name = source.stored_name(index);
  return name.empty() ? fmt::format("{}", index) : name;
}

// Names are told apart within a split.
std::string key_of(std::uint8_t split, std::string_view name) {
  return static_cast<char>('0' + split) + std::string(name);
}

void prepare(const Wanted& wanted, Prepared& prepared, image::EntropyIndexer& indexer, image::EntropyIndex& index) {
  prepared.sample = wanted.source->read(wanted.index, prepared.buffer);
  prepared.name = name_of(*wanted.source, wanted.index);
  const std::span<const std::uint8_t> own = prepared.sample.entropy_index;
  prepared.index.assign(own.begin(), own.end());
  if (prepared.sample.form != PictureForm::encoded || !own.empty()) return;
  if (indexer.make(prepared.sample.bytes, index)) prepared.index = image::serialise(index);
}

// The splits that the source has, and what they have in common.
struct Data {
  explicit Data(const std::string& uri) {
    for (const Split split : {Split::train, Split::test}) {
      try {
        splits.push_back({static_cast<std::uint8_t>(split), open_source(uri, split)});
      } catch (const Error& error) {  // A data set may have one split only.
        if (error.code() != ErrorCode::not_found || split == Split::train) throw;
      }
    }
    Xxh3Stream stream;
    for (const auto& [split, source] : splits) {
      const std::uint64_t own = source->fingerprint();
      stream.update(std::as_bytes(std::span{&own, 1}));
      if (classes.empty()) classes = source->class_names();
    }
    fingerprint = stream.digest();
    std::size_t count = classes.size();
    for (const auto& [split, source] : splits) count = std::max(count, static_cast<std::size_t>(source->classes()));
    classes.resize(count);  // Without names where they have numbers only.
  }

  std::vector<std::pair<std::uint8_t, std::unique_ptr<Source>>> splits;
  std::vector<std::string> classes;
  std::uint64_t fingerprint = 0;
};

class Packing {
 public:
  explicit Packing(const PackPlan& plan) : plan_(plan), data_(plan.source) {}

  std::optional<PackSummary> run(const PackProgress& go_on);

 private:
  Path shard(std::int64_t number) const {
    return plan_.shard_bytes == 0 ? plan_.out : plan_.out / fmt::format("{:05d}.pack", number);
  }
  void find_whole_shards();
  void open_writer();
  void close_writer();
  std::vector<Wanted> missing() const;
  void prepare_block(std::span<const Wanted> block);
  void write_block(std::span<const Wanted> block);

  const PackPlan& plan_;
  const Data data_;
  std::optional<FileLock> lock_;  // Of the folder of shards.
  std::optional<PackFileWriter> writer_;
  std::int64_t shard_ = 0;
  std::unordered_set<std::string> there_;
  std::array<Prepared, kBlock> prepared_;
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
    for (std::size_t i = 0; i < file.rows().size(); ++i) there_.insert(key_of(file.rows()[i].split, file.name(i)));
    ++summary_.files;
  }
}

void Packing::open_writer() {
  const auto mode = plan_.append ? PackFileWriter::Mode::append : PackFileWriter::Mode::fresh;
  writer_.emplace(shard(shard_), data_.fingerprint, data_.classes, mode);
  for (std::size_t i = 0; i < writer_->rows().size(); ++i) {
    there_.insert(key_of(writer_->rows()[i].split, writer_->name(i)));
  }
}

void Packing::close_writer() {
  writer_->commit();
  writer_.reset();
  ++shard_;
  ++summary_.files;
}

std::vector<Wanted> Packing::missing() const {
  std::vector<Wanted> wanted;
  for (const auto& [split, source] : data_.splits) {
    for (std::int64_t i = 0; i < source->size(); ++i) {
      if (there_.empty() || !there_.contains(key_of(split, name_of(*source, i)))) {
        wanted.push_back({source.get(), i, split});
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
      image::EntropyIndexer indexer;
      image::EntropyIndex index;
      for (std::size_t i = next++; i < block.size(); i = next++) prepare(block[i], prepared_[i], indexer, index);
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
    const Prepared& prepared = prepared_[i];
    const Sample& sample = prepared.sample;
    PackRow row{};
    row.label = static_cast<std::uint32_t>(sample.label);
    row.height = static_cast<std::uint32_t>(sample.height);
    row.width = static_cast<std::uint32_t>(sample.width);
    row.channels = static_cast<std::uint8_t>(block[i].source->channels());
    row.form = static_cast<std::uint8_t>(sample.form);
    row.split = block[i].split;
    writer_->add(row, prepared.name, sample.bytes, prepared.index);
    ++summary_.samples;
    ++summary_.added;
    summary_.indexed += prepared.index.empty() ? 0 : 1;
    summary_.bytes += std::ssize(sample.bytes);
    const bool full = plan_.shard_bytes > 0 && static_cast<std::int64_t>(writer_->bytes()) >= plan_.shard_bytes;
    if (full) close_writer();
  }
}

}  // namespace

std::optional<PackSummary> write_pack(const PackPlan& plan, const PackProgress& go_on) {
  return Packing{plan}.run(go_on);
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
        const PackedBytes read = shard.read(i, buffer);
        check.unindexed += read.index.size() != shard.rows()[i].index_size ? 1 : 0;
      } catch (const Error& error) {  // Counted: the others are looked at, too.
        if (check.damaged++ == 0) check.first = error.what();
      }
    }
  }
  return check;
}

}  // namespace headrace
