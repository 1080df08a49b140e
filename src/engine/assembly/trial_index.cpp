#include "engine/assembly/trial_index.h"

#include <headrace/error.h>
#include <unistd.h>

#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "data/pack/index_build.h"

namespace headrace {
namespace {

// Another source's samples, and a place of its own for their index.
class IndexedElsewhere final : public Source {
 public:
  IndexedElsewhere(std::shared_ptr<const Source> source, std::filesystem::path index)
      : source_(std::move(source)), index_(std::move(index)) {}

  std::int64_t size() const override { return source_->size(); }
  std::int64_t num_classes() const override { return source_->num_classes(); }
  int height() const override { return source_->height(); }
  int width() const override { return source_->width(); }
  int channels() const override { return source_->channels(); }
  Schema schema() const override { return source_->schema(); }
  void read(std::int64_t index, Sample& sample) const override { source_->read(index, sample); }
  std::optional<Payload> outline(std::int64_t index) const override { return source_->outline(index); }
  std::optional<ImageSize> image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const override {
    return source_->image_size(index, buffer);
  }
  std::span<const std::uint8_t> read_rows(std::int64_t index, int first, int count,
                                          std::vector<std::uint8_t>& buffer) const override {
    return source_->read_rows(index, first, count, buffer);
  }
  bool in_memory() const override { return source_->in_memory(); }
  std::int64_t label(std::int64_t index) const override { return source_->label(index); }
  std::int64_t sample_bytes(std::int64_t index) const override { return source_->sample_bytes(index); }
  std::vector<std::int64_t> shards() const override { return source_->shards(); }
  std::string sample_name(std::int64_t index) const override { return source_->sample_name(index); }
  std::vector<std::string> class_names() const override { return source_->class_names(); }
  std::vector<std::string> remarks() const override { return source_->remarks(); }
  void interrupt() const override { source_->interrupt(); }
  std::uint64_t fingerprint() const override { return source_->fingerprint(); }
  std::filesystem::path index_file() const override { return index_; }
  std::string stored_name(std::int64_t index) const override { return source_->stored_name(index); }

 private:
  const std::shared_ptr<const Source> source_;
  const std::filesystem::path index_;
};

}  // namespace

TrialIndex::TrialIndex(std::shared_ptr<const Source> source) {
  indexed_ = std::make_shared<IndexedElsewhere>(std::move(source), folder_.path() / "index" / "entropy.records");
}

std::unique_ptr<TrialIndex> TrialIndex::make(std::shared_ptr<const Source> source, std::int64_t threads,
                                             const std::function<bool(std::int64_t done)>& go_on) {
  std::unique_ptr<TrialIndex> made{new TrialIndex(std::move(source))};
  return build_entropy_index(*made->indexed_, threads, go_on) ? std::move(made) : nullptr;
}

// The folder itself, or the nearest one above it that is there.
bool can_write_index(const Source& source) {
  std::filesystem::path folder = source.index_file().parent_path();
  std::error_code ignored;
  while (!folder.empty() && !std::filesystem::exists(folder, ignored)) folder = folder.parent_path();
  return !folder.empty() && ::access(folder.c_str(), W_OK) == 0;
}

}  // namespace headrace
