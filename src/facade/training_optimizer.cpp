#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <headrace/facade/gradient_accumulation.h>
#include <headrace/facade/training_optimizer.h>
#include <headrace/trace.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "core/hardware/machine.h"
#include "core/memory/sampler.h"
#include "facade/agreed.h"
#include "facade/kept_determinism.h"
#include "facade/lent_optimizer.h"
#include "facade/setting_row.h"
#include "insight/diagnose/json.h"
#include "torch/train/loop.h"

namespace headrace::facade {
namespace {

constexpr const char* kSettings[] = {
    "enable_amp",       "gradient_accumulation", "gradient_accumulation_steps", "enable_memory_optimization",
    "memory_threshold", "enable_profiling",      "enable_memory_profiling"};
constexpr const char* kNotRun = "wanted a training loop, as optimize_training_loop(), which was not run";
constexpr const char* kNoEpoch = "wanted an epoch, which was not trained yet";
constexpr double kLossScale = 65536;  // What torch.amp.GradScaler begins with.

using Reasons = std::map<std::string_view, std::string>;  // Why a setting is not applied; empty: it is.

std::vector<Applied> rows_of(const PerformanceConfig& config, const Reasons& reasons) {
  std::vector<Applied> rows;
  for (const char* name : kSettings) rows.push_back(setting_row(config, name, reasons.at(name)));
  return rows;
}

c10::Device device_of(const ModelState& model) {
  if (model.parameters.empty()) {
    fail(ErrorCode::invalid_argument, "facade: model: wanted one with parameters, found none");
  }
  return model.parameters.front().second.device();
}

std::int64_t accumulated_batches(const PerformanceConfig& config, const Loader& loader) {
  if (!config->gradient_accumulation) return 1;
  if (config->gradient_accumulation_steps != AUTOTUNE) return config->gradient_accumulation_steps;
  return setup_gradient_accumulation({.batch_size = loader.state().batch_size});
}

void use_half_precision(TrainOptions& options) {
  options.precision = Precision::fp16;
  options.loss_scale = kLossScale;
}

std::unique_ptr<Trainer> made_trainer(ModelState model, Optimizer optimizer, Forward forward, TrainOptions options) {
  const KeptDeterminism determinism;
  options.deterministic = determinism.is_on();
  return std::make_unique<Trainer>(std::move(model), std::move(optimizer), std::move(forward), options,
                                   LrSchedulerOptions{}, /*optimizer_steps_total=*/1);
}

// The samples of one pass over an epoch of the loader that has the number of the trainer's.
std::int64_t train_once(Trainer& trainer, Loader& loader) {
  trainer.model().set_training(true);
  trainer.drop_losses();
  std::int64_t samples = 0;
  Epoch epoch = loader.epoch(trainer.progress().epoch);
  const LoopEnd end = run_steps(trainer, epoch, std::numeric_limits<std::int64_t>::max(),
                                [&samples](const StepDone& done) { samples += done.samples; });
  if (end == LoopEnd::stopped) fail(ErrorCode::cancelled, "facade: training: a signal asked to stop");
  trainer.finish_window();  // Of a source that does not tell its size.
  return samples;
}

double mean_loss_of(Trainer& trainer) {
  return trainer.take_mean_loss().value_or(std::numeric_limits<double>::quiet_NaN());
}

// cuDNN's benchmark on and its deterministic kernels off.
class FastestCudnn {
 public:
  explicit FastestCudnn(bool is_wanted) : is_wanted_(is_wanted) {
    if (is_wanted_) set(true, false);
  }
  ~FastestCudnn() {
    if (is_wanted_) set(benchmark_, deterministic_);
  }
  FastestCudnn(const FastestCudnn&) = delete;
  FastestCudnn& operator=(const FastestCudnn&) = delete;

 private:
  static void set(bool benchmark, bool deterministic) {
    at::globalContext().setBenchmarkCuDNN(benchmark);
    at::globalContext().setDeterministicCuDNN(deterministic);
  }

  bool is_wanted_;
  bool benchmark_ = at::globalContext().benchmarkCuDNN();
  bool deterministic_ = at::globalContext().deterministicCuDNN();
};

nlohmann::ordered_json json_of(const EpochResult& epoch) {
  nlohmann::ordered_json json{{"epoch", epoch.epoch},
                              {"loss", epoch.loss},
                              {"samples", epoch.samples},
                              {"seconds", epoch.seconds},
                              {"optimizer_steps", epoch.optimizer_steps},
                              {"skipped_updates", epoch.skipped_updates},
                              {"resident_memory", nullptr}};
  if (epoch.resident_memory) json["resident_memory"] = *epoch.resident_memory;
  if (epoch.profile) {
    json["profile"] = headrace::to_json(*epoch.profile);
    json["profile"].erase("step_s");  // One number a step.
  }
  if (epoch.memory_profile) json["memory_profile"] = headrace::to_json(*epoch.memory_profile);
  return json;
}

}  // namespace

double TrainingResults::seconds() const {
  double sum = 0;
  for (const EpochResult& epoch : epochs) sum += epoch.seconds;
  return sum;
}

std::optional<double> TrainingResults::samples_per_second() const {
  std::int64_t samples = 0;
  for (const EpochResult& epoch : epochs) samples += epoch.samples;
  const double all_s = seconds();
  if (!(all_s > 0)) return std::nullopt;
  return static_cast<double>(samples) / all_s;
}

std::int64_t TrainingResults::skipped_updates() const {
  std::int64_t sum = 0;
  for (const EpochResult& epoch : epochs) sum += epoch.skipped_updates;
  return sum;
}

std::string TrainingResults::to_json() const {
  nlohmann::ordered_json json{{"epochs", nlohmann::ordered_json::array()},
                              {"seconds", seconds()},
                              {"samples_per_second", nullptr},
                              {"skipped_updates", skipped_updates()},
                              {"memory_cleanups", memory_cleanups},
                              {"features", nlohmann::ordered_json::object()}};
  for (const EpochResult& epoch : epochs) json["epochs"].push_back(json_of(epoch));
  if (const std::optional<double> speed = samples_per_second()) json["samples_per_second"] = *speed;
  for (const Applied& row : features) {
    json["features"][row.key] = {{"requested", row.requested}, {"applied", row.applied}, {"reason", row.reason}};
  }
  return json.dump(2);
}

struct TrainingLoop::Impl {
  PerformanceConfig config;
  Reasons reasons{};
  std::unique_ptr<Trainer> trainer{};
  std::vector<EpochResult> epochs{};
  std::int64_t memory_cleanups = 0;

  void begin(ModelState model, Optimizer optimizer, Forward forward, const Loader& loader);
  EpochResult train_epoch(Loader& loader);
  // A process has one recording at a time; what is refused is not applied, with the reason.
  std::unique_ptr<Trace> begun_trace();
  void take_profile(Trace& trace, EpochResult& result);
  void take_memory_profile(MemorySampler& sampler, EpochResult& result);
  void clean_up();
};

void TrainingLoop::Impl::begin(ModelState model, Optimizer optimizer, Forward forward, const Loader& loader) {
  for (const char* name : kSettings) reasons[name] = "";
  const c10::Device device = device_of(model);
  TrainOptions options;
  options.gradient_accumulation_steps = accumulated_batches(config, loader);
  if (device.is_cuda()) {
    if (config->enable_amp) use_half_precision(options);
  } else {
    reasons["enable_amp"] = fmt::format("wanted a model on CUDA, found it on {}", device.str());
    reasons["enable_memory_optimization"] = reasons["memory_threshold"] =
        fmt::format("wanted a model on CUDA, whose allocator keeps memory, found it on {}", device.str());
  }
  if (!config->gradient_accumulation) reasons["gradient_accumulation_steps"] = "gradient_accumulation is false";
  if (!config->enable_memory_optimization) reasons["memory_threshold"] = "enable_memory_optimization is false";
  reasons["enable_profiling"] = reasons["enable_memory_profiling"] = kNoEpoch;
  trainer = made_trainer(std::move(model), std::move(optimizer), std::move(forward), options);
}

EpochResult TrainingLoop::Impl::train_epoch(Loader& loader) {
  const std::int64_t skipped_before = trainer->progress().skipped_updates;
  const std::unique_ptr<Trace> trace = config->enable_profiling ? begun_trace() : nullptr;
  std::optional<MemorySampler> sampler;
  if (config->enable_memory_profiling) sampler.emplace();
  EpochResult result{.epoch = static_cast<std::int64_t>(epochs.size()) + 1};
  const std::int64_t begin_ns = monotonic_ns();
  result.samples = train_once(*trainer, loader);
  result.loss = mean_loss_of(*trainer);
  result.seconds = seconds_since(begin_ns);
  result.optimizer_steps = trainer->progress().optimizer_steps;
  result.skipped_updates = trainer->progress().skipped_updates - skipped_before;
  result.resident_memory = resident_memory();
  if (trace != nullptr) take_profile(*trace, result);
  if (sampler) take_memory_profile(*sampler, result);
  epochs.push_back(result);
  if (config->enable_memory_optimization && config->memory_threshold > 0) clean_up();
  return result;
}

std::unique_ptr<Trace> TrainingLoop::Impl::begun_trace() {
  try {
    return std::make_unique<Trace>();
  } catch (const Error& error) {
    reasons["enable_profiling"] = error.what();
    return nullptr;
  }
}

void TrainingLoop::Impl::take_profile(Trace& trace, EpochResult& result) {
  try {
    result.profile = split_time(trace.stop());
    reasons["enable_profiling"] = "";
  } catch (const Error& error) {  // Of an epoch whose spans were too many to be kept.
    reasons["enable_profiling"] = error.what();
  }
}

void TrainingLoop::Impl::take_memory_profile(MemorySampler& sampler, EpochResult& result) {
  MemoryTimeline timeline = sampler.timeline();
  const bool is_told = !timeline.at_ns.empty();
  reasons["enable_memory_profiling"] = is_told ? "" : "the system does not tell how much memory a process holds";
  if (is_told) result.memory_profile = std::move(timeline);
}

void TrainingLoop::Impl::clean_up() {
  const std::optional<DeviceMemory> memory = trainer->device_memory().memory;
  if (!memory) return;  // A CPU has no allocator that keeps memory, as the report says.
  const c10::Device device = device_of(trainer->model());
  const auto total = c10::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second;
  const double limit = config->memory_threshold * static_cast<double>(total);
  if (static_cast<double>(memory->all.allocated.now) <= limit) return;
  trainer->release_device_cache();
  ++memory_cleanups;
}

TrainingLoop::TrainingLoop(const PerformanceConfig& config, ModelState model, Optimizer optimizer, Forward forward,
                           const Loader& loader)
    : impl_(new Impl{config}) {
  impl_->begin(std::move(model), std::move(optimizer), std::move(forward), loader);
}

TrainingLoop::~TrainingLoop() = default;
TrainingLoop::TrainingLoop(TrainingLoop&& other) noexcept = default;

EpochResult TrainingLoop::train_epoch(Loader& loader) {
  return impl_->train_epoch(loader);
}

Trainer& TrainingLoop::trainer() {
  return *impl_->trainer;
}

const Progress& TrainingLoop::progress() const {
  return impl_->trainer->progress();
}

TrainingResults TrainingLoop::results() const {
  return {impl_->epochs, impl_->memory_cleanups, report()};
}

const std::vector<EpochResult>& TrainingLoop::epochs() const {
  return impl_->epochs;
}

std::vector<Applied> TrainingLoop::report() const {
  return rows_of(impl_->config, impl_->reasons);
}

TrainingOptimizer::TrainingOptimizer(PerformanceConfig config) : config_(std::move(config)) {}

TrainingLoop TrainingOptimizer::begin(ModelState model, Optimizer optimizer, Forward forward,
                                      const Loader& loader) const {
  return {config_, std::move(model), std::move(optimizer), std::move(forward), loader};
}

TrainingResults TrainingOptimizer::train(const ModelState& model, Loader& loader, Optimizer& optimizer,
                                         const Forward& forward, std::int64_t num_epochs) {
  if (num_epochs < 1) {
    fail(ErrorCode::invalid_argument, "facade: num_epochs: wanted a whole number above 0, found {}", num_epochs);
  }
  TrainingLoop loop = begin(model, optimizer, forward, loader);
  const LentOptimizer lent(optimizer, loop.trainer());
  for (std::int64_t epoch = 0; epoch < num_epochs; ++epoch) loop.train_epoch(loader);
  report_ = loop.report();
  return loop.results();
}

std::vector<Applied> TrainingOptimizer::report() const {
  if (report_) return *report_;
  Reasons reasons;
  for (const char* name : kSettings) reasons[name] = kNotRun;
  return rows_of(config_, reasons);
}

TrainingLoss optimized_training_loop(const ModelState& model, Loader& train_loader, Optimizer& optimizer,
                                     const Forward& forward, c10::Device device, const TrainingConfig& config) {
  const c10::Device found = device_of(model);
  if (device.type() != found.type() || (device.has_index() && found.has_index() && device.index() != found.index())) {
    fail(ErrorCode::invalid_argument, "facade: device: wanted the model's, which is {}, found {}", found.str(),
         device.str());
  }
  const bool is_mixed = agreed<bool>("mixed precision",
                                     {{"enable_mixed_precision", config.enable_mixed_precision},
                                      {"mixed_precision", config.mixed_precision},
                                      {"enable_amp", config.enable_amp}},
                                     true);
  TrainOptions options;
  if (is_mixed && found.is_cuda()) use_half_precision(options);
  const FastestCudnn fastest(found.is_cuda());
  const std::unique_ptr<Trainer> trainer = made_trainer(model, optimizer, forward, options);
  const LentOptimizer lent(optimizer, *trainer);
  train_once(*trainer, train_loader);
  return {mean_loss_of(*trainer)};
}

}  // namespace headrace::facade
