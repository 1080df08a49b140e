#include "data/source/entropy_index_cache.h"

#include <system_error>
#include <utility>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/store/file_name.h"

namespace headrace::detail {
namespace {

// More than this are of earlier contents for the most part, and the file is made anew.
std::int64_t records_max(std::int64_t samples) {
  return 4 * samples + 1024;
}

FileLock lock_folder(const std::filesystem::path& folder) {
  std::error_code reason;
  std::filesystem::create_directories(folder, reason);
  if (reason) fail(ErrorCode::io, "data: cannot make {}: {}", printable_name(folder.native()), reason.message());
  FileLock lock{folder / "lock"};
  remove_leftovers(folder);
  return lock;
}

}  // namespace

IndexWriting::IndexWriting(const std::filesystem::path& path) : lock_(lock_folder(path.parent_path())), file_(path) {}

std::unique_ptr<RecordFile> open_index(const std::filesystem::path& path, std::int64_t samples) {
  try {
    return std::make_unique<RecordFile>(path, records_max(samples));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    return nullptr;
  }
}

std::uint64_t index_key(std::span<const std::uint8_t> file) {
  return xxh3(std::as_bytes(file));
}

EntropyIndexCache::EntropyIndexCache(const Source& source, IndexUse wanted)
    : path_(source.size() == kUnknownSize ? std::filesystem::path{} : source.info().index_file),
      samples_(source.size()),
      wanted_(wanted) {
  if (wanted == IndexUse::none) return;
  if (path_.empty()) {
    if (wanted == IndexUse::build) refusal_ = "the source is no folder of JPEG files";
    return;
  }
  try {
    file_ = open_index(path_, samples_);
  } catch (const Error& error) {
    refusal_ = error.what();
  }
  if (wanted != IndexUse::build) return;
  try {
    writing_ = std::make_unique<IndexWriting>(path_);
    building_ = true;
    refusal_.clear();  // What could not be used is replaced.
  } catch (const Error& error) {
    refusal_ = error.what();
  }
}

const codec::EntropyIndex* EntropyIndexCache::find(const Payload& image, Scratch& scratch) {
  if (wanted_ != IndexUse::none && !image.entropy_index.empty()) {
    return parse(image.entropy_index, scratch) ? &scratch.index : nullptr;
  }
  const bool building = building_.load(std::memory_order_relaxed);
  if (file_ == nullptr && !building) return nullptr;
  const std::uint64_t key = index_key(image.bytes);
  if (file_ != nullptr && look_up(key, scratch)) return scratch.record.empty() ? nullptr : &scratch.index;
  return building ? make(key, image.bytes, scratch) : nullptr;
}

// False: it is not known. An empty record: it is known that the image has none.
bool EntropyIndexCache::look_up(std::uint64_t key, Scratch& scratch) {
  const RecordState state = file_->find(key, scratch.record);
  if (state == RecordState::absent) misses_.fetch_add(1, std::memory_order_relaxed);
  if (state == RecordState::damaged) refused_.fetch_add(1, std::memory_order_relaxed);
  if (state != RecordState::whole) return false;
  return scratch.record.empty() || parse(scratch.record, scratch);
}

bool EntropyIndexCache::parse(std::span<const std::uint8_t> record, Scratch& scratch) {
  try {
    codec::parse_entropy_index(record, scratch.index);
    return true;
  } catch (const Error&) {  // Counted; the image is decoded without.
    refused_.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
}

const codec::EntropyIndex* EntropyIndexCache::make(std::uint64_t key, std::span<const std::uint8_t> file,
                                                   Scratch& scratch) {
  {
    std::lock_guard lock(mutex_);
    if (writing_ == nullptr || writing_->file().contains(key)) return nullptr;
  }
  if (file_ == nullptr) misses_.fetch_add(1, std::memory_order_relaxed);
  const bool made = scratch.indexer.make(file, scratch.index);
  std::vector<std::uint8_t> record;
  if (made) record = codec::serialise(scratch.index);
  std::lock_guard lock(mutex_);
  if (writing_ != nullptr && !writing_->file().contains(key)) {
    try {
      writing_->file().add(key, record);
    } catch (const Error& error) {
      stop_building(error.what());
    }
  }
  return made ? &scratch.index : nullptr;
}

void EntropyIndexCache::finish_epoch() {
  if (!building_) return;
  std::lock_guard lock(mutex_);
  try {
    RecordFileWriter& fresh = writing_->file();
    if (fresh.size() > 0) {
      const bool fits = file_ != nullptr && fresh.size() + file_->size() <= records_max(samples_);
      if (fits) fresh.add_missing(*file_);
      fresh.commit();
      file_ = open_index(path_, samples_);
    }
    stop_building("");
  } catch (const Error& error) {
    stop_building(error.what());
  }
}

// The lock is held.
void EntropyIndexCache::stop_building(std::string why) {
  building_ = false;
  writing_ = nullptr;
  refusal_ = std::move(why);
}

Applied EntropyIndexCache::applied() const {
  std::lock_guard lock(mutex_);
  const bool refused = !refusal_.empty();
  const IndexUse left = file_ != nullptr ? IndexUse::use : IndexUse::none;
  return {"data.index", std::string(choice_name(wanted_)), std::string(choice_name(refused ? left : wanted_)),
          refusal_};
}

bool EntropyIndexCache::has_index() const {
  std::lock_guard lock(mutex_);
  return file_ != nullptr || writing_ != nullptr;
}

EntropyIndexCache::Counts EntropyIndexCache::counts() const noexcept {
  return {hits_.load(std::memory_order_relaxed), misses_.load(std::memory_order_relaxed),
          refused_.load(std::memory_order_relaxed)};
}

}  // namespace headrace::detail
