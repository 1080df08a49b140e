#include "data/loader/detail/order.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <unordered_map>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/loader/detail/buckets.h"

namespace headrace::detail {
namespace {

// Apart from the keys of transforms, permutations and replacements.
constexpr std::uint64_t kWeightedKey = 0x3C6EF372FE94F82BU;
constexpr std::uint64_t kGroupKey = 0xA54FF53A5F1D36F1U;

std::vector<double> chances(const Source& source, const DataOptions& options) {
  const std::int64_t size = source.size(), classes = source.info().num_classes;
  if (options.sampler == Sampler::weighted && std::ssize(options.weights) == size && size != classes) {
    return options.weights;
  }
  if (options.sampler == Sampler::weighted && std::ssize(options.weights) != classes) {
    fail(ErrorCode::invalid_argument, "data: data.weights has {} values; wanted {}, one a class, or {}, one a sample",
         options.weights.size(), classes, size);
  }
  if (const Schema& schema = source.info().schema; !schema.class_label()) {
    fail(ErrorCode::invalid_argument,
         "data: data.sampler is \"{}\", which draws by class, and the source has no labels, one int64 a sample: {}",
         choice_name(options.sampler), schema.text());
  }
  const KnownSamples* const known = source.capabilities().known;
  if (known == nullptr) {
    fail(ErrorCode::invalid_argument,
         "data: data.sampler is \"{}\", which draws by class, and the source tells no label before its sample is read",
         choice_name(options.sampler));
  }
  std::vector<double> of_class = options.weights;
  const auto class_of = [&](std::int64_t index) {
    const std::int64_t label = known->label(index);
    if (label < 0 || label >= classes) {
      fail(ErrorCode::corrupt_data, "data: {}: label {}; wanted 0 to {}", source.name(index), label, classes - 1);
    }
    return static_cast<std::size_t>(label);
  };
  if (options.sampler == Sampler::class_balanced) {
    of_class.assign(static_cast<std::size_t>(classes), 0.0);
    for (std::int64_t i = 0; i < size; ++i) of_class[class_of(i)] += 1.0;
    for (double& count : of_class) count = count > 0 ? 1.0 / count : 0.0;
  }
  std::vector<double> of_sample(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i) of_sample[static_cast<std::size_t>(i)] = of_class[class_of(i)];
  return of_sample;
}

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

AliasTable::AliasTable(const std::vector<double>& weights) : slots_(weights.size()) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  HEADRACE_CHECK(sum > 0 && std::isfinite(sum), "data: weights that sum to {}", sum);
  const double scale = static_cast<double>(weights.size()) / sum;
  std::vector<double> share(weights.size());  // Of a slot; what is missing to 1 is another element's.
  std::vector<std::uint32_t> small, large;
  for (std::uint32_t i = 0; i < weights.size(); ++i) {
    share[i] = weights[i] * scale;
    (share[i] < 1.0 ? small : large).push_back(i);
    slots_[i] = {std::numeric_limits<std::uint32_t>::max(), i};
  }
  while (!small.empty() && !large.empty()) {
    const std::uint32_t poor = small.back(), rich = large.back();
    small.pop_back();
    slots_[poor] = {static_cast<std::uint32_t>(share[poor] * 0x1p32), rich};
    share[rich] -= 1.0 - share[poor];
    if (share[rich] >= 1.0) continue;
    large.pop_back();
    small.push_back(rich);
  }
  // What is left in either list is 1 but for rounding, and is its slot's only element.
}

std::int64_t AliasTable::draw(const std::array<std::uint32_t, 4>& words) const noexcept {
  // The upper half of a 64-bit number times the size, of at most 32 bits.
  const std::uint64_t size = slots_.size();
  const auto slot = static_cast<std::size_t>((words[0] * size + (words[1] * size >> 32)) >> 32);
  return words[2] < slots_[slot].threshold ? static_cast<std::int64_t>(slot) : std::int64_t{slots_[slot].other};
}

Order::Order(const Source& source, const DataOptions& options, std::uint64_t seed, bool training)
    : size_(source.size()), seed_(seed), kind_(kind_of(options, training)) {
  if (kind_ == Kind::weighted) read_weights(source, options);
  if (kind_ == Kind::bucketed) {
    step_ = samples_a_step(options);
    group_ = std::min(rounded_up((size_ + options.buckets - 1) / options.buckets, step_), size_);
    alike_ = by_likeness(source, options, seed_, group_);
  }
  if (kind_ == Kind::windowed) {
    group_ = std::min(options.shuffle_window, size_);
    shards_ = source.info().shards;
    if (shards_.empty()) shards_ = {size_};
    HEADRACE_CHECK(std::accumulate(shards_.begin(), shards_.end(), std::int64_t{0}) == size_,
                   "data: the shards of {} samples do not make them up", size_);
  }
}

Order::Kind Order::kind_of(const DataOptions& options, bool training) {
  if (!training || !options.shuffle) return Kind::sequential;
  if (options.sampler != Sampler::each) return Kind::weighted;
  if (options.buckets > 0) return Kind::bucketed;
  return options.shuffle_window > 0 ? Kind::windowed : Kind::shuffled;
}

void Order::read_weights(const Source& source, const DataOptions& options) {
  if (size_ > std::numeric_limits<std::uint32_t>::max()) {
    fail(ErrorCode::unsupported, "data: weights of {} samples; at most 2^32 - 1 can have them", size_);
  }
  const std::vector<double> weights = chances(source, options);
  if (std::none_of(weights.begin(), weights.end(), [](double weight) { return weight > 0; })) {
    fail(ErrorCode::invalid_argument, "data: data.weights leaves every sample without a chance");
  }
  alias_ = AliasTable{weights};
}

GivenEpoch::GivenEpoch(GivenOrder order, std::int64_t epoch, std::int64_t samples, std::int64_t batch_size)
    : order_(std::move(order)) {
  if (order_.samples.empty()) {
    fail(ErrorCode::invalid_argument, "data: {}: no index for epoch {}; wanted at least one", order_.name, epoch);
  }
  for (std::size_t position = 0; position < order_.samples.size(); ++position) {
    const std::int64_t index = order_.samples[position];
    if (index >= 0 && index < samples) continue;
    fail(ErrorCode::invalid_argument, "data: {}: index {} at position {} of epoch {}; wanted 0 to {}", order_.name,
         index, position, epoch, samples - 1);
  }
  check_batches(epoch, batch_size);
  number_repeated(samples);
  Xxh3Stream stream;
  const std::int64_t positions = this->positions();
  stream.update(std::as_bytes(std::span{&positions, 1}));
  stream.update(std::as_bytes(std::span{order_.samples}));
  stream.update(std::as_bytes(std::span{order_.batch_ends}));
  hash_ = std::max<std::uint64_t>(stream.digest(), 1);
}

void GivenEpoch::check_batches(std::int64_t epoch, std::int64_t batch_size) const {
  std::int64_t begin = 0;
  for (std::size_t batch = 0; batch < order_.batch_ends.size(); ++batch) {
    const std::int64_t end = order_.batch_ends[batch];
    if (end == begin)
      fail(ErrorCode::invalid_argument, "data: {}: batch {} of epoch {} is empty", order_.name, batch, epoch);
    if (end < begin || end > positions()) {
      fail(ErrorCode::invalid_argument, "data: {}: batch {} of epoch {} ends at position {}; wanted {} to {}",
           order_.name, batch, epoch, end, begin + 1, positions());
    }
    if (end - begin > batch_size) {
      fail(ErrorCode::invalid_argument,
           "data: {}: batch {} of epoch {} has {} samples; wanted at most {}, data.batch_size", order_.name, batch,
           epoch, end - begin, batch_size);
    }
    begin = end;
  }
  if (!order_.batch_ends.empty() && begin < positions()) {
    fail(ErrorCode::invalid_argument, "data: {}: the batches of epoch {} end at position {} of {}", order_.name, epoch,
         begin, positions());
  }
}

// The second time that a sample comes is drawn as one more data set behind the source would be, and so on: by its index
// alone it would come twice with the same crop.
void GivenEpoch::number_repeated(std::int64_t samples) {
  std::vector<bool> seen(static_cast<std::size_t>(samples));
  std::unordered_map<std::int64_t, std::int64_t> repeated;  // By index, how often it came before.
  for (std::size_t position = 0; position < order_.samples.size(); ++position) {
    const std::int64_t index = order_.samples[position];
    const bool comes_again = seen[static_cast<std::size_t>(index)];
    seen[static_cast<std::size_t>(index)] = true;
    if (comes_again && draws_.empty()) draws_ = order_.samples;
    if (comes_again) draws_[position] = index + ++repeated[index] * samples;
  }
}

EpochOrder::EpochOrder(const Order& order, std::int64_t epoch, std::unique_ptr<const GivenEpoch> given)
    : order_(order),
      given_(std::move(given)),
      epoch_(epoch),
      whole_(order.size_ / order.step_, order.seed_, epoch),
      in_group_(order.group_, order.seed_ ^ kGroupKey, epoch),
      in_last_(order.size_ % order.group_, order.seed_ ^ kGroupKey, epoch) {
  const std::int64_t shards = std::ssize(order.shards_);
  if (shards == 0) return;
  std::vector<std::int64_t> begins(order.shards_.size());
  std::exclusive_scan(order.shards_.begin(), order.shards_.end(), begins.begin(), std::int64_t{0});
  const Permutation shuffled{shards, order.seed_, epoch};
  std::int64_t end = 0;
  for (std::int64_t i = 0; i < shards; ++i) {
    const auto shard = static_cast<std::size_t>(shuffled(i));
    end += order.shards_[shard];
    shard_begins_.push_back(begins[shard]);
    shard_ends_.push_back(end);
  }
}

std::int64_t EpochOrder::sample_at(std::int64_t position) const noexcept {
  const std::int64_t positions = given_ != nullptr ? given_->positions() : order_.size_;
  HEADRACE_CHECK(position >= 0 && position < positions, "data: position {} of {}", position, positions);
  if (given_ != nullptr) return given_->sample_at(position);
  switch (order_.kind_) {
    case Order::Kind::sequential:
      return position;
    case Order::Kind::shuffled:
      return whole_(position);
    case Order::Kind::windowed:
      return in_shards(in_window(position));
    case Order::Kind::bucketed:
      return order_.alike_[static_cast<std::size_t>(in_bucket(position))];
    case Order::Kind::weighted:
      break;
  }
  const std::uint64_t seed = order_.seed_ ^ kWeightedKey;
  const auto place = static_cast<std::uint64_t>(position), epoch = static_cast<std::uint64_t>(epoch_);
  return order_.alias_.draw(philox({static_cast<std::uint32_t>(place), static_cast<std::uint32_t>(place >> 32),
                                    static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)},
                                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}));
}

// The same place among those of its window or bucket, shuffled.
std::int64_t EpochOrder::in_window(std::int64_t position) const noexcept {
  const std::int64_t group = position / order_.group_, begin = group * order_.group_;
  const bool is_whole = begin + order_.group_ <= order_.size_;
  return begin + (is_whole ? in_group_ : in_last_)(position - begin, group);
}

std::int64_t EpochOrder::in_shards(std::int64_t place) const noexcept {
  const auto shard = std::upper_bound(shard_ends_.begin(), shard_ends_.end(), place) - shard_ends_.begin();
  const std::int64_t before = shard == 0 ? 0 : shard_ends_[static_cast<std::size_t>(shard - 1)];
  return shard_begins_[static_cast<std::size_t>(shard)] + place - before;
}

// Whole steps change places; what is left over of the last bucket stays last.
std::int64_t EpochOrder::in_bucket(std::int64_t position) const noexcept {
  const std::int64_t step = position / order_.step_, whole = order_.size_ / order_.step_;
  const std::int64_t from = step < whole ? whole_(step) : step;
  return in_window(from * order_.step_ + position % order_.step_);
}

BatchSampler::BatchSampler(std::int64_t positions, const DataOptions& options, LastBatch last_batch, std::int64_t begin,
                           const std::vector<std::int64_t>* ends) noexcept
    : positions_(positions),
      batch_size_(options.batch_size),
      ranks_(options.world_size),
      rank_(options.rank),
      last_batch_(last_batch),
      begin_(begin),
      ends_(ends) {}

std::int64_t BatchSampler::first_batch() const noexcept {
  if (ends_ != nullptr) return std::upper_bound(ends_->begin(), ends_->end(), begin_) - ends_->begin();
  return begin_ / step();
}

std::int64_t BatchSampler::position_after(std::int64_t batch) const noexcept {
  if (ends_ != nullptr) return (*ends_)[static_cast<std::size_t>(batch)];
  return std::min(begin_ + (batch + 1 - first_batch()) * step(), positions_);
}

std::int64_t BatchSampler::end_batch() const noexcept {
  if (ends_ != nullptr) return std::ssize(*ends_);
  return first_batch() + batches_of(positions_ - begin_, step(), last_batch_);
}

BatchSampler::Slice BatchSampler::slice(std::int64_t batch) const noexcept {
  if (ends_ != nullptr) {
    const std::int64_t from = batch == 0 ? 0 : position_after(batch - 1), size = position_after(batch) - from;
    return {size, size, from, 0};
  }
  const std::int64_t begin = begin_ + (batch - first_batch()) * step(), left = positions_ - begin;
  if (left >= step()) return {batch_size_, batch_size_, begin + rank_ * batch_size_, 0};
  const std::int64_t share = (left + ranks_ - 1) / ranks_;  // Of each rank; the last ones may get less.
  const std::int64_t size = last_batch_ == LastBatch::pad ? batch_size_ : share;
  const std::int64_t before = std::min(rank_ * share, left);  // Assigned to the ranks before this one.
  return {size, std::min(share, left - before), begin + before, rank_ * size - before};
}

}  // namespace headrace::detail
