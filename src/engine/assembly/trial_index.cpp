#include "engine/assembly/trial_index.h"

#include <headrace/error.h>
#include <unistd.h>

#include <string>
#include <system_error>
#include <utility>

#include "data/pack/index_build.h"

namespace headrace {
namespace {

// Another source's samples, and a place of its own for their index.
class IndexedElsewhere final : public Source {
 public:
  IndexedElsewhere(std::shared_ptr<const Source> source, std::filesystem::path index)
      : source_(std::move(source)), info_(source_->info()) {
    info_.index_file = std::move(index);
  }

  std::int64_t size() const override { return source_->size(); }
  const SourceInfo& info() const override { return info_; }
  void read(std::int64_t index, Sample& sample) const override { source_->read(index, sample); }
  std::string name(std::int64_t index) const override { return source_->name(index); }
  Capabilities capabilities() const override { return source_->capabilities(); }

 private:
  const std::shared_ptr<const Source> source_;
  SourceInfo info_;
};

}  // namespace

TrialIndex::TrialIndex(std::shared_ptr<const Source> source) {
  folder_.emplace();
  indexed_ = std::make_shared<IndexedElsewhere>(std::move(source), folder_->path() / "index" / "entropy.records");
}

TrialIndex::TrialIndex(std::shared_ptr<const Source> source, std::filesystem::path file)
    : indexed_(std::make_shared<IndexedElsewhere>(std::move(source), std::move(file))) {}

std::unique_ptr<TrialIndex> TrialIndex::make(std::shared_ptr<const Source> source, std::int64_t threads,
                                             const std::function<bool(std::int64_t done)>& go_on) {
  std::unique_ptr<TrialIndex> made{new TrialIndex(std::move(source))};
  return build_entropy_index(*made->indexed_, threads, go_on) ? std::move(made) : nullptr;
}

// The folder itself, or the nearest one above it that is there.
bool can_write_index(const Source& source) {
  std::filesystem::path folder = source.info().index_file.parent_path();
  std::error_code ignored;
  while (!folder.empty() && !std::filesystem::exists(folder, ignored)) folder = folder.parent_path();
  return !folder.empty() && ::access(folder.c_str(), W_OK) == 0;
}

}  // namespace headrace
