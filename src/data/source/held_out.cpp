#include "data/source/held_out.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "core/base/random.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

// Indices that are told of at once.
constexpr std::size_t kExpectedMax = 64;

// Some of another source's samples. What a sample's index goes with is told by that source in its own indices.
class Part final : public Source, ImageRows, ImageSizes, KnownSamples, Expecting, StoredNames {
 public:
  Part(std::shared_ptr<const Source> source, std::vector<std::int64_t> samples, std::filesystem::path index_file,
       std::uint64_t fingerprint)
      : source_(std::move(source)),
        samples_(std::move(samples)),
        can_(source_->capabilities()),
        info_(source_->info()) {
    info_.shards = shards();
    info_.index_file = std::move(index_file);
    info_.fingerprint = fingerprint;
  }

  std::int64_t size() const override { return std::ssize(samples_); }
  const SourceInfo& info() const override { return info_; }
  Capabilities capabilities() const override {
    return {.rows = can_.rows == nullptr ? nullptr : this,
            .sizes = can_.sizes == nullptr ? nullptr : this,
            .known = can_.known == nullptr ? nullptr : this,
            .expecting = can_.expecting == nullptr ? nullptr : this,
            .names = can_.names == nullptr ? nullptr : this,
            .interruptible = can_.interruptible,
            .store = can_.store};
  }
  void read(std::int64_t index, Sample& sample) const override { source_->read(checked(index), sample); }
  std::string name(std::int64_t index) const override { return source_->name(at(index)); }
  Payload outline(std::int64_t index) const override { return can_.rows->outline(checked(index)); }
  std::span<const std::uint8_t> read_rows(std::int64_t index, int first, int count,
                                          std::vector<std::uint8_t>& buffer) const override {
    return can_.rows->read_rows(checked(index), first, count, buffer);
  }
  ImageSize image_size(std::int64_t index, std::vector<std::uint8_t>& buffer) const override {
    return can_.sizes->image_size(checked(index), buffer);
  }
  std::int64_t label(std::int64_t index) const override { return can_.known->label(at(index)); }
  std::int64_t sample_bytes(std::int64_t index) const override { return can_.known->sample_bytes(at(index)); }
  void expect(std::span<const std::int64_t> indices) const noexcept override;
  std::string stored_name(std::int64_t index) const override { return can_.names->stored_name(at(index)); }

 private:
  std::vector<std::int64_t> shards() const;
  std::int64_t at(std::int64_t index) const { return samples_[static_cast<std::size_t>(index)]; }
  std::int64_t checked(std::int64_t index) const {
    if (index < 0 || index >= size()) {
      fail(ErrorCode::invalid_argument, "data: sample {}: there are {} samples", index, size());
    }
    return at(index);
  }

  const std::shared_ptr<const Source> source_;  // Owners: the parts of it, and whoever else reads it.
  const std::vector<std::int64_t> samples_;     // Their indices there, rising.
  const Capabilities can_;                      // The source's.
  SourceInfo info_;
};

void Part::expect(std::span<const std::int64_t> indices) const noexcept {
  std::array<std::int64_t, kExpectedMax> there{};
  for (std::size_t from = 0; from < indices.size(); from += kExpectedMax) {
    const auto part = indices.subspan(from, std::min(kExpectedMax, indices.size() - from));
    std::transform(part.begin(), part.end(), there.begin(), [this](std::int64_t index) { return at(index); });
    can_.expecting->expect(std::span{there}.first(part.size()));
  }
}

std::vector<std::int64_t> Part::shards() const {
  std::vector<std::int64_t> counts;
  auto sample = samples_.begin();
  std::int64_t end = 0;
  for (const std::int64_t whole : source_->info().shards) {
    end += whole;
    const auto next = std::lower_bound(sample, samples_.end(), end);
    if (next != sample) counts.push_back(next - sample);
    sample = next;
  }
  return counts;
}

// Whether each sample is held out. No epoch has this key, so that the choice has nothing to do with an order.
std::vector<bool> held_out(std::int64_t samples, double fraction, std::uint64_t seed) {
  const std::int64_t count = std::llround(fraction * static_cast<double>(samples));
  if (count < 1 || count >= samples) {
    fail(ErrorCode::invalid_argument, "data: data.val_fraction = {} holds out {} of {} samples; wanted at least one {}",
         fraction, count, samples, count < 1 ? "held out" : "left to train on");
  }
  const Permutation permutation{samples, seed, /*epoch=*/-1};
  std::vector<bool> chosen(static_cast<std::size_t>(samples));
  for (std::int64_t i = 0; i < count; ++i) chosen[static_cast<std::size_t>(permutation(i))] = true;
  return chosen;
}

std::uint64_t fingerprint_of(const Source& whole, double fraction, std::uint64_t seed, Split split) {
  const std::uint64_t parts[] = {whole.info().fingerprint, std::bit_cast<std::uint64_t>(fraction), seed,
                                 static_cast<std::uint64_t>(split)};
  return xxh3(std::as_bytes(std::span{parts}));
}

void refuse_second_val(const DataOptions& options) {
  const std::vector<Split> there = splits_of(options.source);
  if (std::find(there.begin(), there.end(), Split::val) == there.end()) return;
  fail(ErrorCode::invalid_argument,
       "data: data.val_fraction is {} and {} has a split val of its own; wanted one of them", options.val_fraction,
       printable_name(options.source));
}

bool is_held_out(const DataOptions& options, Split split) {
  return options.val_fraction > 0 && split == Split::val;
}

std::shared_ptr<const Source> part_of_options(std::shared_ptr<const Source> source, const DataOptions& options,
                                              std::uint64_t seed, Split split) {
  if (options.val_fraction > 0) refuse_second_val(options);
  return source == nullptr ? nullptr : part_of(std::move(source), options.val_fraction, seed, split);
}

}  // namespace

std::shared_ptr<const Source> part_of(std::shared_ptr<const Source> source, double fraction, std::uint64_t seed,
                                      Split split) {
  if (fraction == 0 || split == Split::test) return source;
  if (source->size() == kUnknownSize) {
    fail(ErrorCode::invalid_argument,
         "data: data.val_fraction is {}, and the source does not tell how many samples it has; wanted 0", fraction);
  }
  const std::vector<bool> is_val = held_out(source->size(), fraction, seed);
  std::vector<std::int64_t> samples;
  for (std::int64_t i = 0; i < source->size(); ++i) {
    if (is_val[static_cast<std::size_t>(i)] == (split == Split::val)) samples.push_back(i);
  }
  // One loader alone writes the index of a file, and only crops of training gain from one.
  const std::filesystem::path index_file = split == Split::train ? source->info().index_file : std::filesystem::path{};
  const std::uint64_t fingerprint = fingerprint_of(*source, fraction, seed, split);
  return std::make_shared<Part>(std::move(source), std::move(samples), index_file, fingerprint);
}

std::shared_ptr<const Source> find_split(const DataOptions& options, std::uint64_t seed, Split split) {
  const Split stored = is_held_out(options, split) ? Split::train : split;
  return part_of_options(find_source(options.source, stored, options.limits()), options, seed, split);
}

std::shared_ptr<const Source> open_split(const DataOptions& options, std::uint64_t seed, Split split) {
  const Split stored = is_held_out(options, split) ? Split::train : split;
  return part_of_options(open_source(options.source, stored, options.limits()), options, seed, split);
}

}  // namespace headrace
