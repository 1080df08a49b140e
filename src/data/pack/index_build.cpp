#include "data/pack/index_build.h"

#include <atomic>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "data/source/entropy_index_cache.h"
#include "data/source/sample_reader.h"

namespace headrace {
namespace {

class IndexBuild {
 public:
  explicit IndexBuild(const Source& source) : source_(source), writing_(source.info().index_file) {
    try {
      known_ = detail::open_index(source.info().index_file, source.size());
    } catch (const Error& error) {  // A damaged one is replaced.
      if (error.code() == ErrorCode::io) throw;
    }
  }

  std::optional<IndexSummary> run(std::int64_t threads, const std::function<bool(std::int64_t)>& go_on);

 private:
  void work(const std::function<bool(std::int64_t)>& go_on);
  void add(std::int64_t index, Sample& sample, detail::EntropyIndexCache::Scratch& scratch);
  void note(std::uint64_t key, const std::vector<std::uint8_t>& record, bool was_known, std::int64_t bytes);
  void stop(std::exception_ptr why);

  const SampleReader source_;
  detail::IndexWriting writing_;
  std::unique_ptr<RecordFile> known_;  // Null: there is none yet.
  std::atomic<std::int64_t> next_{0}, done_{0};
  std::atomic<bool> stopped_{false};
  std::mutex mutex_;  // Guards everything below, and writing_.
  IndexSummary summary_;
  std::exception_ptr failure_;
};

std::optional<IndexSummary> IndexBuild::run(std::int64_t threads, const std::function<bool(std::int64_t)>& go_on) {
  if (!go_on(0)) return std::nullopt;  // Other threads may leave this one no image after which it would ask.
  {
    std::vector<std::jthread> others;
    for (std::int64_t i = 1; i < threads; ++i) {
      others.emplace_back([this] { work([](std::int64_t) { return true; }); });
    }
    work(go_on);
  }
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  if (stopped_) return std::nullopt;
  summary_.images = source_.size();
  summary_.index_bytes = writing_.file().bytes();
  writing_.file().commit();
  return std::move(summary_);
}

void IndexBuild::work(const std::function<bool(std::int64_t)>& go_on) {
  try {
    Sample sample;
    detail::EntropyIndexCache::Scratch scratch;
    while (!stopped_) {
      const std::int64_t index = next_.fetch_add(1);
      if (index >= source_.size()) return;
      add(index, sample, scratch);
      if (!go_on(done_.fetch_add(1) + 1)) stop(nullptr);
    }
  } catch (...) {
    stop(std::current_exception());
  }
}

void IndexBuild::add(std::int64_t index, Sample& sample, detail::EntropyIndexCache::Scratch& scratch) {
  try {
    source_.read(index, sample);
  } catch (const Error& error) {  // Counted; whoever trains is told by data.on_corrupt.
    std::lock_guard lock(mutex_);
    if (summary_.unreadable++ == 0) summary_.first_unreadable = error.what();
    return;
  }
  const std::span<const std::uint8_t> file = sample.image().bytes;
  const std::uint64_t key = detail::index_key(file);
  if (known_ != nullptr && known_->find(key, scratch.record) == RecordState::whole) {
    return note(key, scratch.record, true, std::ssize(file));
  }
  scratch.record.clear();
  if (scratch.indexer.make(file, scratch.index)) scratch.record = codec::serialise(scratch.index);
  note(key, scratch.record, false, std::ssize(file));
}

void IndexBuild::note(std::uint64_t key, const std::vector<std::uint8_t>& record, bool was_known, std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  if (!writing_.file().contains(key)) writing_.file().add(key, record);  // Two files may be the same.
  ++(record.empty() ? summary_.plain : summary_.indexed);
  if (was_known && !record.empty()) ++summary_.known;
  summary_.data_bytes += bytes;
}

void IndexBuild::stop(std::exception_ptr why) {
  std::lock_guard lock(mutex_);
  stopped_ = true;
  if (failure_ == nullptr) failure_ = std::move(why);
}

}  // namespace

std::optional<IndexSummary> build_entropy_index(const Source& source, std::int64_t threads,
                                                const std::function<bool(std::int64_t done)>& go_on) {
  if (source.info().index_file.empty()) {
    fail(ErrorCode::invalid_argument, "data: an index is made of a folder of JPEG files (folder:DIR) only");
  }
  return IndexBuild{source}.run(threads, go_on);
}

}  // namespace headrace
