// A Loader as its users see it: what it is built from, where an epoch begins and stands, its state, its statistics.
#include <headrace/loader.h>
#include <headrace/option_tables.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "core/options/contradictions.h"
#include "core/options/transforms.h"
#include "data/loader/detail/batch_operations.h"
#include "data/loader/detail/loader_impl.h"
#include "data/loader/detail/loader_state.h"

namespace headrace {
namespace {

using detail::BatchSampler;
using detail::kConsumerBatches;
using detail::Pass;
using detail::Place;

DataOptions checked(DataOptions options) {
  for (auto& field : with_elements(fields_of(options, "data."))) {
    if (field.set) field.set(field.get());  // Throws for what lies out of range.
  }
  const std::string transforms = transforms_contradiction(options, "data.");
  if (!transforms.empty()) fail(ErrorCode::invalid_argument, "data: {}", transforms);
  const std::string transform = transform_contradiction(options.transform, "data.transform.");
  if (!transform.empty()) fail(ErrorCode::invalid_argument, "data: {}", transform);
  const std::string order = order_contradiction(options, "data.");
  if (!order.empty()) fail(ErrorCode::invalid_argument, "data: {}", order);
  return options;
}

const Source& checked(const std::shared_ptr<const Source>& source) {
  if (source == nullptr) fail(ErrorCode::invalid_argument, "data: a loader without a source");
  if (source->size() < 1) fail(ErrorCode::invalid_argument, "data: the source has no samples");
  return *source;
}

// Lists of operations that a transform says, too, run as that one: a state of either goes on with the other.
DataOptions in_shorthand(DataOptions options, const SourceInfo& info, bool training, bool has_operations) {
  if (options.transforms.empty()) return options;
  if (has_operations) {
    fail(ErrorCode::invalid_argument,
         "data: data.transforms is set beside a list of operations; wanted one of the two");
  }
  if (!info.schema.image()) {
    fail(ErrorCode::invalid_argument, "data: data.transforms is set, and the source has no image to transform: {}",
         info.schema.text());
  }
  const ImageShape stored = stored_shape(info.schema);
  return with_shorthand(std::move(options), training, {stored.height, stored.width});
}

// "data.transform.size is 224", of the first key in which they differ.
std::optional<std::string> first_difference(TransformOptions options, TransformOptions from) {
  auto wanted = fields_of(from, "data.transform.");
  for (std::size_t i = 0; const auto& field : fields_of(options, "data.transform.")) {
    const std::string value = to_toml(field.get());
    if (value != to_toml(wanted[i++].get())) return fmt::format("{} is {}", field.key, value);
  }
  return std::nullopt;
}

detail::SampleFields checked_fields(const SourceInfo& info, const DataOptions& options) {
  detail::SampleFields fields{info.schema, info.num_classes};
  const std::string text = fields.schema.text();
  if (fields.schema.empty()) fail(ErrorCode::invalid_argument, "data: the source has no fields");
  if (fields.image) {
    const FieldSpec& image = fields.schema[*fields.image];
    if (image.optional) {
      fail(ErrorCode::unsupported, "data: field {}: an image that a sample may lack; wanted one in each", image.name);
    }
    return fields;
  }
  if (const auto set = first_difference(options.transform, {})) {
    fail(ErrorCode::invalid_argument, "data: {}, and the source has no image to transform: {}", *set, text);
  }
  return fields;
}

// The caller's order is whole: it is one rank's, and no other sample may come into it.
void check_given(const DataOptions& options, bool training) {
  const auto refuse = [](const auto& what, const auto& wanted) {
    fail(ErrorCode::invalid_argument, "data: {}, and the order of each epoch is given; wanted {}", what, wanted);
  };
  if (options.world_size > 1) {
    refuse(fmt::format("data.world_size is {}", options.world_size), "1 and an order of this rank's own part");
  }
  if (options.sampler != Sampler::each) {
    refuse(fmt::format("data.sampler is \"{}\"", choice_name(options.sampler)), "\"each\"");
  }
  if (options.shuffle_window > 0) refuse(fmt::format("data.shuffle_window is {}", options.shuffle_window), "0");
  if (options.buckets > 0) refuse(fmt::format("data.buckets is {}", options.buckets), "0");
  if (training && options.on_corrupt == OnCorrupt::replace) {
    refuse("data.on_corrupt is \"replace\"", "fail | zero: a sample that is drawn might be none of the order's");
  }
}

// Whether the source's end shows when it is there: its samples come in their own order then, to one rank, and no other
// one can be had in the place of one.
bool is_open_ended(const Source& source, const DataOptions& options, bool training, bool given) {
  if (source.size() != kUnknownSize) return false;
  const auto refuse = [](const auto& what, const auto& wanted) {
    fail(ErrorCode::invalid_argument, "data: {}, and the source does not tell how many samples it has; wanted {}", what,
         wanted);
  };
  if (given) refuse("the order of each epoch is given", "none");
  if (training && options.shuffle) refuse("data.shuffle is true", "false");
  if (options.world_size > 1) refuse(fmt::format("data.world_size is {}", options.world_size), "1");
  if (options.cache != Cache::none) refuse(fmt::format("data.cache is \"{}\"", choice_name(options.cache)), "\"none\"");
  if (training && options.on_corrupt == OnCorrupt::replace) refuse("data.on_corrupt is \"replace\"", "fail | zero");
  return true;
}

// Which partners a sample gets is drawn of all positions.
void check_partners(const transform::Plan& plan) {
  const auto step = plan.partner_step();
  if (!step) return;
  fail(ErrorCode::invalid_argument, "data: {} reads other samples, and the source does not tell how many it has",
       plan.operations()[plan.steps()[*step].first]->name());
}

// An evaluation leaves nothing out.
LastBatch last_batch_of(const DataOptions& options, bool training) {
  return options.last_batch == LastBatch::drop && !training ? LastBatch::keep : options.last_batch;
}

std::int64_t count_batches(const BatchSampler& batch_sampler, std::int64_t samples, const DataOptions& options,
                           bool given) {
  if (given) return batches_of(samples, options.batch_size, LastBatch::keep);
  if (batch_sampler.end_batch() == 0) {
    fail(ErrorCode::invalid_argument,
         "data: no batch is left: {} samples, batch_size {} on each of {} ranks, and last_batch drops what is smaller",
         samples, options.batch_size, options.world_size);
  }
  return batch_sampler.end_batch();
}

void check_image(const ImageShape& stored, int side_max = codec::kSideMax) {
  const bool encoded = stored.height == 0 && stored.width == 0;
  if (encoded && stored.channels != 1 && stored.channels != 3) {
    fail(ErrorCode::invalid_argument, "data: encoded images of {} channels; wanted 1 or 3", stored.channels);
  }
  const bool too_large = std::max(stored.height, stored.width) > side_max;
  if (!encoded && (stored.height < 1 || stored.width < 1 || too_large)) {
    fail(ErrorCode::invalid_argument, "data: images of {} x {} pixels; wanted 1 to {}", stored.height, stored.width,
         codec::kSideMax);
  }
}

std::vector<detail::ToldOperation> told_of(const transform::Operations& operations) {
  std::vector<detail::ToldOperation> told;
  for (const auto& operation : operations) {
    if (operation == nullptr) fail(ErrorCode::invalid_argument, "data: an operation that is null");
    told.push_back({std::string(operation->name()), operation->parameters()});
    for (const OperationParameter& parameter : told.back().parameters) {
      if ((parameter.name + parameter.value).find('\n') == std::string::npos) continue;
      fail(ErrorCode::invalid_argument, "data: {}: the parameter {} has a line break; a state holds it as one line",
           operation->name(), parameter.name);
    }
  }
  return told;
}

transform::Plan plan_of(const Source& source, const detail::SampleFields& fields, const DataOptions& options,
                        bool training, transform::Operations operations) {
  const PixelLayout layout = options.transform.layout;
  const bool are_given = !operations.empty();
  // A list says all that data.transform could, but for the order of a batch's values in memory.
  if (const auto set = first_difference(options.transform, {.layout = layout}); are_given && set) {
    fail(ErrorCode::invalid_argument, "data: {} beside a list of operations; wanted one of the two", *set);
  }
  if (are_given && !fields.image) {
    fail(ErrorCode::invalid_argument, "data: {}, and the source has no image to transform: {}",
         operations.front()->name(), fields.schema.text());
  }
  if (!fields.image) return {{}, Schema::image_and_labels(1, 1, 1), layout};  // Never run.
  const ImageShape stored = stored_shape(fields.schema);
  if (are_given || !options.transforms.empty()) {
    check_image(stored);
  } else {
    batch_shape(source, options.transform);
  }
  if (!are_given) {
    const auto list = transforms_in_force(options, training, {stored.height, stored.width});
    operations = transform::operations_of(list);
  }
  return {std::move(operations), fields.schema, layout};
}

detail::BatchLayout layout_of(const detail::SampleFields& fields, const ImageShape& shape, const transform::Plan& plan,
                              const DataOptions& options) {
  std::optional<detail::ImagePlace> image;
  if (fields.image) image = {shape, plan.type(), plan.layout()};
  return {fields, image, options.batch_size};
}

std::optional<FieldBytes> rest_of(const detail::SampleFields& fields, const Capabilities& can) {
  if (fields.are_image_and_labels && can.known != nullptr) return std::nullopt;
  return FieldBytes{fields.schema, fields.image};
}

std::int64_t limit_or_machines(std::int64_t requested) {
  if (requested < 0) fail(ErrorCode::invalid_argument, "data: a memory limit of {} bytes", requested);
  if (requested > 0) return requested;
  return detect_machine().memory_limit.value_or(std::numeric_limits<std::int64_t>::max());
}

// The policy of a pass: another sample in place of one in evaluation would count twice in its metrics.
OnCorrupt policy_of(const DataOptions& options, bool training) {
  return options.on_corrupt == OnCorrupt::replace && !training ? OnCorrupt::zero : options.on_corrupt;
}

}  // namespace

Loader::Impl::Impl(std::shared_ptr<const Source> from, DataOptions how, std::uint64_t run_seed, bool for_training,
                   std::int64_t limit, OrderOfEpoch orders, transform::Operations operations)
    : told_operations(told_of(operations)),
      has_list(!told_operations.empty() || !how.transforms.empty()),
      source((checked(from), std::move(from))),
      options(in_shorthand(checked(std::move(how)), source->info(), for_training, !told_operations.empty())),
      seed(run_seed),
      training(for_training),
      reader(*source, options.limits()),
      fields(checked_fields(reader.info(), options)),
      rest(rest_of(fields, reader.can())),
      plan(plan_of(*source, fields, options, training, std::move(operations))),
      shape(fields.image ? ImageShape{plan.size().channels, plan.size().height, plan.size().width} : ImageShape{}),
      is_open(is_open_ended(*source, options, training, orders != nullptr)),
      order(*source, options, seed, training),
      order_of(std::move(orders)),
      batches(count_batches(sampler_from(0), source->size(), options, order_of != nullptr)),
      memory_limit(limit_or_machines(limit)),
      layout(layout_of(fields, shape, plan, options)),
      batch_bytes(static_cast<std::int64_t>(layout.block_bytes)),
      built_ns(monotonic_ns()),
      slots(std::make_shared<detail::SlotPool>(layout, first_prefetch() + kConsumerBatches, memory_limit)),
      indices(*source, options.index),
      own_workspace(fields.schema.size(), announced_max()),
      bytes_options(detail::state_options(options, training, fields.schema, order_of != nullptr, told_operations)),
      window(options.batch_size, first_prefetch(),
             reader.info().in_memory ? detail::kChunkMaxInMemory : detail::kChunkMax) {
  if (order_of) check_given(options, training);
  if (is_open) check_partners(plan);
  // Of orders that are given, and of an end that is not known, only the batch itself tells its size.
  const std::int64_t last_batch_size =
      order_of || is_open ? options.batch_size : sampler_from(0).slice(batches - 1).size;
  detail::check_plan(plan, layout, options, last_batch_size);
  prepare(own_workspace);
  set_cache(options.cache, /*keep=*/false);
  set_num_workers(options.num_workers);
}

BatchSampler Loader::Impl::sampler_from(std::int64_t position) const {
  return {order.positions(), options, last_batch_of(options, training), position};
}

Place Loader::Impl::place_of(std::int64_t index, std::int64_t first_batch) const {
  if (index < 0) fail(ErrorCode::invalid_argument, "data: epoch {}; wanted 0 or more", index);
  if (order_of && first_batch != 0) {
    fail(ErrorCode::invalid_argument,
         "data: batch {} of epoch {}, whose order is given when it begins; wanted 0, or restore() of a state",
         first_batch, index);
  }
  if (order_of) return {index, 0};
  if (first_batch < 0 || first_batch > batches) {
    fail(ErrorCode::invalid_argument, "data: batch {} of an epoch of {}", first_batch, batches);
  }
  return {index, first_batch == batches ? order.positions() : first_batch * samples_a_step(options)};
}

// For the epoch that begins at `place`; null where `order` says it.
std::unique_ptr<const detail::GivenEpoch> Loader::Impl::given_order(const Place& place) const {
  if (!order_of) return nullptr;
  auto given = std::make_unique<const detail::GivenEpoch>(order_of(place.epoch), place.epoch, source->size(),
                                                          options.batch_size);
  if (place.order == 0 || place.order == given->hash()) return given;
  fail(ErrorCode::invalid_argument,
       "data: {}: gave another order for epoch {} than the one within which the state stands, at position {}; the same "
       "would have the hash {:016x}, this one, of {} samples, has {:016x}",
       given->name(), place.epoch, place.position, place.order, given->positions(), given->hash());
}

BatchSampler Loader::Impl::sampler_of(const detail::GivenEpoch& given, const Place& place) const {
  const BatchSampler batch_sampler{given.positions(), options, last_batch_of(options, training), place.position,
                                   given.batch_ends()};
  const std::int64_t first = batch_sampler.first_batch();
  const bool begins_one = first == 0 ? place.position == 0 : batch_sampler.position_after(first - 1) == place.position;
  if (place.position > given.positions() || !begins_one) {
    fail(ErrorCode::invalid_argument, "data: {}: no batch of epoch {} begins at position {}", given.name(), place.epoch,
         place.position);
  }
  if (batch_sampler.end_batch() > 0) return batch_sampler;
  fail(ErrorCode::invalid_argument,
       "data: {}: no batch is left: {} samples for epoch {}, batch_size {}, and last_batch drops what is smaller",
       given.name(), given.positions(), place.epoch, options.batch_size);
}

void Loader::Impl::fail_for_count() {
  fail(ErrorCode::invalid_argument,
       "data: how many batches an epoch has shows at its end: its source does not tell how many samples it has");
}

std::int64_t Loader::Impl::batches_per_epoch() const {
  if (is_open) fail_for_count();
  if (!order_of) return batches;
  std::lock_guard lock(mutex);
  if (window.end_batch() > 0) return window.end_batch();
  fail(ErrorCode::invalid_argument,
       "data: how many batches an epoch has is known when its order is given: as it begins");
}

void Loader::Impl::start_at(Place place) {
  if (!order_of) {
    const BatchSampler batch_sampler = sampler_from(place.position);
    if (batch_sampler.first_batch() == batch_sampler.end_batch()) place = {place.epoch + 1, 0};
  }
  std::lock_guard lock(mutex);
  consumer.start_at(place);
}

LoaderState Loader::Impl::state() const {
  const std::uint64_t fingerprint = reader.info().fingerprint;
  std::lock_guard lock(mutex);
  if (!options.in_order && window.has_pass() && !consumer.has_start()) {
    fail(ErrorCode::invalid_argument,
         "data: no state within epoch {}: with data.in_order = false its batches come as they get ready",
         window.pass().epoch);
  }
  if (is_open && consumer.has_request()) {
    fail(ErrorCode::invalid_argument,
         "data: no state, and no further request, while a batch is asked for: whether epoch {} has another one is not "
         "known yet",
         window.pass().epoch);
  }
  const Place place = consumer.place();
  return {place.epoch,        place.position,     seed,          fingerprint,
          options.batch_size, options.world_size, bytes_options, place.order};
}

void Loader::Impl::restore(const LoaderState& state) {
  // How many samples an order has that is given is known when its epoch begins.
  const std::int64_t positions = order_of ? std::numeric_limits<std::int64_t>::max() : order.positions();
  detail::check_state(state, this->state(), positions, options.buckets > 0);
  start_at({state.epoch, state.position, state.order});
}

// Where next_epoch() goes on, without `from`.
std::unique_ptr<Epoch::Impl> Loader::Impl::begin(std::optional<Place> from) {
  std::unique_lock lock(mutex);
  const auto check_no_pass = [this] {
    if (window.has_pass()) fail(ErrorCode::invalid_argument, "data: epoch {} is still running", window.pass().epoch);
  };
  check_no_pass();
  const Place place = from ? *from : consumer.next_epoch();
  lock.unlock();  // The caller's function may wait for Python's lock, or ask where the loader stands.
  auto given = given_order(place);
  const BatchSampler batch_sampler = given != nullptr ? sampler_of(*given, place) : sampler_from(place.position);
  const std::uint64_t order_hash = given != nullptr ? given->hash() : 0;
  lock.lock();
  check_no_pass();  // It may have begun one.
  const std::int64_t first = batch_sampler.first_batch(), end = batch_sampler.end_batch();
  std::optional<std::int64_t> count;
  if (!is_open) count = first == end && !order_of ? batches : end;
  auto state =
      std::make_unique<Epoch::Impl>(Epoch::Impl{this, count, std::make_shared<std::atomic<std::int64_t>>(end - first)});
  std::unique_ptr<Pass> pass;
  if (first < end) {
    pass.reset(new Pass{{reader.can().rows, plan.first(), options, seed, place.epoch, &indices},
                        reader,
                        policy_of(options, training),
                        detail::EpochOrder{order, place.epoch, std::move(given)},
                        batch_sampler,
                        layout,
                        plan,
                        rest ? &*rest : nullptr});
  }
  consumer.begin(place.epoch, first < end ? Place{place.epoch, place.position, order_hash} : Place{place.epoch + 1, 0},
                 first, first < end ? state->left : nullptr);
  window.begin(std::move(pass), first, end);
  tuning.pause();
  lock.unlock();
  room.notify_all();
  return state;
}

LoaderStatistics Loader::Impl::statistics() const {
  std::lock_guard lock(mutex);
  LoaderStatistics now = counters.statistics();
  now.wait_for_batch_ns += consumer.blocked_ns()->load();
  now.cache_bytes = cache.bytes();
  const detail::EntropyIndexCache::Counts found = indices.counts();
  now.index_hits = found.hits;
  now.index_misses = found.misses;
  now.index_refused = found.refused;
  now.batch_bytes = slots->batch_bytes();
  now.pool_bytes = slots->allocated_bytes();
  now.retired_batches = slots->retired();
  now.num_workers = workers.count();
  now.workers_started = workers.started();
  now.prefetch_batches = window.depth();
  return now;
}

std::int64_t Loader::Impl::held_bytes() const {
  const std::unique_lock lock(mutex, std::try_to_lock);
  if (lock) held_told = slots->allocated_bytes() + counters.workspace_bytes();
  return held_told;
}

std::vector<LoaderDecision> Loader::Impl::decisions() const {
  std::lock_guard lock(mutex);
  return tuning.decisions();
}

std::vector<CorruptSample> Loader::Impl::corrupt_samples() const {
  std::lock_guard lock(mutex);
  return counters.corrupt();
}

// ---- Public face ----

ImageShape batch_shape(const Source& source, const TransformOptions& transform) {
  const ImageShape stored = stored_shape(source.info().schema);
  const bool encoded = stored.height == 0 && stored.width == 0;
  if (encoded && transform.size == 0) {
    fail(ErrorCode::invalid_argument,
         "data: each image of this source has a size of its own; data.transform.size must be set");
  }
  check_image(stored, transform.size > 0 ? codec::kSideMax : std::numeric_limits<int>::max());
  const auto side = static_cast<int>(transform.size);
  return side > 0 ? ImageShape{stored.channels, side, side} : stored;
}

Loader::Loader(std::shared_ptr<const Source> source, DataOptions options, std::uint64_t seed, bool training,
               std::int64_t memory_limit, OrderOfEpoch order, std::vector<std::shared_ptr<const Operation>> operations)
    : impl_(std::make_unique<Impl>(std::move(source), std::move(options), seed, training, memory_limit,
                                   std::move(order), std::move(operations))) {}

Loader::~Loader() {
  {
    std::lock_guard lock(impl_->mutex);  // A worker may be ending the pass whose last batch nobody waits for.
    HEADRACE_CHECK(!impl_->window.has_pass(), "data: a loader was destroyed before its running epoch {}",
                   impl_->window.pass().epoch);
  }
  impl_->slots->close();
}

Epoch Loader::epoch(std::int64_t index, std::int64_t first_batch) & {
  return Epoch{impl_->begin(impl_->place_of(index, first_batch))};
}

Epoch Loader::next_epoch() & {
  return Epoch{impl_->begin(std::nullopt)};
}

std::int64_t Loader::next_epoch_index() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->consumer.next_epoch().epoch;
}

LoaderState Loader::state() const {
  return impl_->state();
}

void Loader::restore(const LoaderState& state) {
  impl_->restore(state);
}

void Loader::start_at(std::int64_t index, std::int64_t first_batch) {
  impl_->start_at(impl_->place_of(index, first_batch));
}

std::int64_t Loader::batches_per_epoch() const {
  return impl_->batches_per_epoch();
}

const Schema& Loader::schema() const {
  return impl_->fields.schema;
}

const ImageShape& Loader::Impl::image_shape() const {
  if (fields.image) return shape;
  fail(ErrorCode::invalid_argument, "data: the batches have no image: {}", fields.schema.text());
}

int Loader::channels() const {
  return impl_->image_shape().channels;
}
int Loader::height() const {
  return impl_->image_shape().height;
}
int Loader::width() const {
  return impl_->image_shape().width;
}

void Loader::set_num_workers(std::int64_t threads) {
  DataOptions asked = impl_->options;
  asked.num_workers = threads;
  impl_->set_num_workers(checked(std::move(asked)).num_workers);
}

void Loader::renew_workers() {
  impl_->renew_workers();
}

void Loader::set_prefetch_batches(std::int64_t batches) {
  DataOptions asked = impl_->options;
  asked.prefetch_batches = batches;
  impl_->set_prefetch_batches(checked(std::move(asked)).prefetch_batches);
}

std::int64_t Loader::cache_bytes_max() const {
  std::lock_guard lock(impl_->mutex);
  return impl_->cache.bytes_max(/*keep=*/false);
}

void Loader::set_cache(Cache cache, bool keep) {
  impl_->set_cache(cache, keep);
}

Applied Loader::applied_num_workers() const {
  return impl_->applied_num_workers();
}

Applied Loader::applied_prefetch() const {
  return impl_->applied_prefetch();
}

std::vector<LoaderDecision> Loader::decisions() const {
  return impl_->decisions();
}

Applied Loader::applied_cache() const {
  return impl_->applied_cache();
}

Applied Loader::applied_index() const {
  return impl_->indices.applied();
}

std::vector<CorruptSample> Loader::corrupt_samples() const {
  return impl_->corrupt_samples();
}

LoaderStatistics Loader::statistics() const {
  return impl_->statistics();
}

}  // namespace headrace
