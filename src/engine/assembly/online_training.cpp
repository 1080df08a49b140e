#include "engine/assembly/online_training.h"

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "engine/assembly/kept_loop.h"
#include "engine/assembly/online_ledger.h"
#include "engine/assembly/state.h"
#include "torch/tensor/translate.h"
#include "torch/train/training_state.h"

namespace headrace {
namespace {

constexpr std::string_view kLoading = "data.";  // Of keys that say how data are loaded.
constexpr double kRoom = 1.5;                   // A candidate may need so much more than the loop has needed.

Settings loading_of(Settings settings) {
  std::erase_if(settings, [](const auto& setting) { return !setting.first.starts_with(kLoading); });
  return settings;
}

// On which an update depends; the layout, because fused ones walk through memory.
constexpr std::array<const char*, 3> kUpdateKeys{"optimizer.fused", "optimizer.foreach", "model.memory_format"};

bool changes_update(const Settings& reference, const Settings& candidate) {
  return std::any_of(kUpdateKeys.begin(), kUpdateKeys.end(), [&](const char* key) {
    const auto a = reference.find(key), b = candidate.find(key);
    if (a == reference.end() || b == candidate.end()) return (a == reference.end()) != (b == candidate.end());
    return a->second != b->second;
  });
}

// `unsupported` says that the kept call is at fault, and not the change.
ReplayFailure failure_of(const Error& error, bool is_reference) {
  const bool is_memory = error.code() == ErrorCode::out_of_memory;
  if (is_reference && !is_memory) {
    return {ErrorCode::unsupported, fmt::format("the kept batch cannot be replayed: {}", error.what())};
  }
  const bool is_reserved = error.code() == ErrorCode::unsupported;
  return {is_reserved ? ErrorCode::invalid_argument : error.code(), error.what()};
}

}  // namespace

OnlineTraining::OnlineTraining(Training& training, const Machine& machine)
    : training_(training),
      written_(training.recipe()),
      memory_limit_(machine.memory_limit),
      planted_(written_.tune.planted, static_cast<std::uint64_t>(written_.seed), training.trainer()),
      queue_before_(batches_ahead()),
      call_(training.trainer(), planted_) {
  strategy_context_.live = true;
  strategy_context_.trainer = &training.trainer();
  trainer().on_part = [this](StepPart part) { on_part(part); };
}

OnlineTraining::~OnlineTraining() {
  trainer().on_part = nullptr;
}

void OnlineTraining::on_part(StepPart part) {
  if (part == StepPart::forward) {
    if (keeps_windows_ && trainer().progress().window == 0) {
      start_ = WindowStart{trainer().progress(), generator_state(), {}};
      for (const auto& [name, tensor] : trainer().model().buffers) start_->buffers.push_back(tensor.detach().clone());
    }
    if (keeps_call_) call_.begin();
  }
  if (part != StepPart::optimizer) return;
  planted_.before_update();
  if (keeps_call_ && call_.is_kept() && before_update) before_update();
}

// ---- Settings ----

void OnlineTraining::apply(const Settings& settings) {
  const Settings whole = with_changes(kept_before_, settings);
  const bool loads_otherwise = loading_of(whole) != loading_of(actual_);
  const std::int64_t ahead = batches_ahead();
  put_in_force(whole);
  if (loads_otherwise) queue_before_ = ahead;
  in_force_ = settings;
  ++applied_count_;
}

void OnlineTraining::build_on(const Settings& kept) {
  put_in_force(kept);
  kept_before_ = kept;
  in_force_.clear();
}

void OnlineTraining::put_in_force(const Settings& settings) {
  try {
    switch_to(settings);
  } catch (...) {
    const Error error = translate(std::current_exception());
    std::erase_if(actual_, [this](const auto& setting) { return strategies_.ended().contains(setting.first); });
    switch_to(actual_);
    throw error;
  }
  actual_ = settings;
}

void OnlineTraining::switch_to(const Settings& settings) {
  const PlantedKnobs::Division divided = planted_.divide(strategies_.set(settings, strategy_context_));
  Recipe next = written_;
  apply_settings(next, divided.others);
  if (training_.needs_other_loader(next)) {
    fail(ErrorCode::unsupported,
         "assembly: data.scale_decode and data.index: wanted a loader of their own, which an "
         "epoch under way does not take");
  }
  training_.apply_live(next, divided.others);
  planted_.set_on(divided.on);
}

// No batch is taken meanwhile: the loader stays as it is.
void OnlineTraining::apply_beside_loading(const Settings& settings) {
  Settings whole = loading_of(with_changes(kept_before_, in_force_));
  for (const auto& [key, value] : settings) {
    if (!key.starts_with(kLoading)) whole[key] = value;
  }
  if (whole != actual_) put_in_force(whole);
}

void OnlineTraining::apply_for_call(const Settings& settings) {
  apply_beside_loading(with_changes(kept_before_, settings));
}

void OnlineTraining::with_settings_back(const std::function<void()>& work) {
  const auto back = [this] {
    const Settings held = with_changes(kept_before_, in_force_);
    if (held != actual_) put_in_force(held);
  };
  try {
    work();
  } catch (...) {
    back();
    throw;
  }
  back();
}

void OnlineTraining::as_written(const std::function<void()>& work) {
  with_settings_back([&] {
    apply_beside_loading({});
    work();
  });
}

const Settings& OnlineTraining::undo_strategies() {
  strategies_.set({}, strategy_context_);
  return strategies_.ended();
}

// ---- Calls ----

void OnlineTraining::keep_windows(bool wanted) {
  keeps_windows_ = wanted;
  if (wanted) return;
  start_.reset();
  plain_.clear();  // No call is kept from now on.
  plain_before_.clear();
}

void OnlineTraining::keep_next_call(bool wanted) {
  if (!plain_.empty()) plain_before_ = std::exchange(plain_, {});
  reference_.reset();
  call_.drop();
  keeps_call_ = wanted;
}

void OnlineTraining::see(const Batch& batch) {
  if (keeps_call_) call_.keep(batch);
}

bool OnlineTraining::take_window_back() {
  if (!start_) return false;
  trainer().optimizer().zero_gradients();
  put_values(trainer().model().buffers, start_->buffers);
  set_generator_state(start_->generator);
  trainer().progress() = start_->progress;
  start_.reset();
  return true;
}

Replay OnlineTraining::replay(const Settings& reference, const Settings& candidate, ReplayUse /*use*/) {
  if (!call_.is_kept()) return {std::nullopt, {ErrorCode::unsupported, "no batch was kept"}};
  Replay made;
  with_settings_back([&] { made = replay_kept(reference, candidate); });
  return made;
}

Replay OnlineTraining::replay_kept(const Settings& reference, const Settings& candidate) {
  bool is_reference = true;
  try {
    const KeptLoop kept{trainer()};
    make_reference(reference);
    is_reference = false;
    std::optional<NamedTensors> updated;
    if (changes_update(reference, candidate)) {
      apply_for_call(reference);
      updated = updated_by(trainer(), reference_->gradients);
    }
    check_room();
    apply_for_call(candidate);
    const CallResult result = call_.make_again();
    ReplayDistance distance = distance_of(trainer().model().parameters, *reference_, result);
    if (updated) {
      distance.update_difference = state_difference(updated_by(trainer(), reference_->gradients), *updated);
    }
    return {distance};
  } catch (...) {
    const Error error = translate(std::current_exception());
    if (error.code() == ErrorCode::cancelled) throw;
    return {std::nullopt, failure_of(error, is_reference)};
  }
}

void OnlineTraining::make_reference(const Settings& settings) {
  if (!reference_ || reference_settings_ != settings) {
    reference_.reset();
    apply_for_call(settings);
    CallResult result = call_.make_again();
    if (!all_finite(result.gradients)) fail(ErrorCode::numerics, "its gradients are not finite");
    reference_ = std::move(result);
    reference_settings_ = settings;
  }
  if (settings.empty()) plain_ = reference_->gradients;
}

std::optional<double> OnlineTraining::distance_between_calls() {
  if (!call_.is_kept()) return std::nullopt;
  const auto make_plain = [this] {
    try {
      const KeptLoop kept{trainer()};
      make_reference({});
    } catch (...) {
      if (translate(std::current_exception()).code() == ErrorCode::cancelled) throw;
      plain_.clear();  // replay() meets it again, and says it.
    }
  };
  if (plain_.empty()) with_settings_back(make_plain);
  if (plain_.empty()) return std::numeric_limits<double>::quiet_NaN();
  if (plain_before_.empty()) return std::nullopt;
  return gradient_squares(plain_, plain_before_).distance();
}

void OnlineTraining::check_room() const {
  const auto resident = resident_memory(), peak = peak_memory();
  if (!memory_limit_ || !resident || !peak) return;
  std::int64_t gradients = 0;
  for (const at::Tensor& gradient : reference_->gradients) {
    if (gradient.defined()) gradients += static_cast<std::int64_t>(gradient.nbytes());
  }
  const std::int64_t grown = std::max<std::int64_t>(0, *peak - *resident);
  const auto needed = static_cast<std::int64_t>(kRoom * static_cast<double>(grown + gradients));
  const std::int64_t allowed = std::max<std::int64_t>(0, *memory_limit_ - *resident);
  const std::int64_t free = std::min(allowed, free_memory().value_or(allowed));
  if (needed > free) {
    fail(ErrorCode::out_of_memory, "assembly: a replay needs {} MiB, {} MiB are free", needed >> 20, free >> 20);
  }
}

// ---- The run ----

std::optional<std::int64_t> OnlineTraining::updates_left() {
  const Progress& progress = trainer().progress();
  if (progress.epoch >= written_.train.epochs) return 0;
  const std::int64_t window = written_.train.gradient_accumulation_steps, batches = training_.batches_per_epoch();
  const auto updates = [window](std::int64_t micro_batches) { return (micro_batches + window - 1) / window; };
  const std::int64_t epochs_behind = written_.train.epochs - progress.epoch - 1;
  return updates(std::max<std::int64_t>(0, batches - progress.batch)) + epochs_behind * updates(batches);
}

std::int64_t OnlineTraining::queued_units() {
  const std::int64_t window = written_.train.gradient_accumulation_steps;
  return (std::max(queue_before_, batches_ahead()) + window - 1) / window;
}

std::int64_t OnlineTraining::batches_ahead() const {
  const DataOptions& data = training_.recipe().data;
  if (data.num_workers == 0) return 0;
  return data.prefetch_batches == AUTOTUNE ? training_.loader().statistics().prefetch_batches : data.prefetch_batches;
}

}  // namespace headrace
