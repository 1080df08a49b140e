#include <headrace/facade/performance_optimizer.h>
#include <headrace/facade/performance_preset_options.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <iterator>
#include <string_view>

#include "core/base/fail.h"
#include "facade/lent_optimizer.h"
#include "facade/performance_summary.h"
#include "facade/setting_row.h"

namespace headrace::facade {
namespace {

constexpr std::string_view kOfTheLoader =
    "a Loader has options of its own (DataOptions), which are not changed once it is made";
constexpr std::string_view kOwnWorkers = "nobody has said it, and a default leaves the loader's own";
constexpr std::string_view kNoLoop = "wanted a training loop, which was not begun";
constexpr std::string_view kNotBuilt = "its part is not built yet";

// Why a setting that neither model nor training looks at is not applied.
std::string_view why_not(std::string_view name) {
  if (name == "optimization_level" || name == "memory_format") return "";
  if (name == "batch_size_optimization") return "wanted BatchOptimizer::optimize_batch_size(), which searches one";
  const std::string_view of_loader[] = {"pin_memory", "persistent_workers", "prefetch_factor",
                                        "enable_async_data_loading"};
  return std::find(std::begin(of_loader), std::end(of_loader), name) == std::end(of_loader) ? kNotBuilt : kOfTheLoader;
}

const Applied* row_of(const std::vector<Applied>& rows, std::string_view key) {
  const auto found = std::find_if(rows.begin(), rows.end(), [key](const Applied& row) { return row.key == key; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

PerformanceOptimizer::PerformanceOptimizer(const PerformanceConfig& config)
    : config_(config), model_optimizer_(config), training_optimizer_(config) {}

PerformanceOptimizer::PerformanceOptimizer(OptimizationLevel level) : PerformanceOptimizer(PerformanceConfig(level)) {}

PerformanceOptimizer::PerformanceOptimizer(PerformanceOptimizer&& other) noexcept = default;

PerformanceOptimizer::~PerformanceOptimizer() {
  try {
    cleanup();
  } catch (const std::exception& error) {  // A destructor has nobody to throw to.
    std::fprintf(stderr, "headrace: facade: cleanup: %s\n", error.what());
  }
}

PerformanceMonitor& PerformanceOptimizer::performance_monitor() {
  if (monitor_ == nullptr) monitor_ = std::make_unique<PerformanceMonitor>();
  return *monitor_;
}

PerformanceProfiler& PerformanceOptimizer::profiler() {
  if (profiler_ == nullptr) {
    profiler_ = std::make_unique<PerformanceProfiler>(config_->enable_profiling, config_->enable_memory_profiling);
  }
  return *profiler_;
}

std::vector<Applied> PerformanceOptimizer::apply_hardware_settings() {
  std::vector<Applied> rows;
  for (HardwareSettings (*const apply)() : {&optimize_cpu_settings, &optimize_cuda_settings}) {
    hardware_.push_back(apply());
    const std::vector<Applied>& set = hardware_.back().settings();
    rows.insert(rows.end(), set.begin(), set.end());
  }
  return rows;
}

void PerformanceOptimizer::set_up(Loader& loader) {
  num_workers_.reset();
  if (config_.set_by("num_workers") == SetBy::by_default) return;
  loader.set_num_workers(config_->num_workers);
  num_workers_ = loader.applied_num_workers();
  num_workers_->key = "num_workers";
}

TrainingLoop PerformanceOptimizer::begin_loop(ModelState model, Optimizer optimizer, Forward forward, Loader& loader) {
  set_up(loader);
  TrainingLoop loop = training_optimizer_.begin(std::move(model), std::move(optimizer), std::move(forward), loader);
  model_optimizer_.optimize_model(loop.trainer());
  of_loop_ = loop.report();
  return loop;
}

TrainingResults PerformanceOptimizer::optimize_training_loop(const ModelState& model, Loader& loader,
                                                             Optimizer& optimizer, const Forward& forward,
                                                             std::int64_t num_epochs) {
  if (num_epochs < 1) {
    fail(ErrorCode::invalid_argument, "facade: num_epochs: wanted a whole number above 0, found {}", num_epochs);
  }
  TrainingLoop loop = begin_loop(model, optimizer, forward, loader);
  const LentOptimizer lent(optimizer, loop.trainer());
  for (std::int64_t epoch = 0; epoch < num_epochs; ++epoch) loop.train_epoch(loader);
  TrainingResults results = loop.results();
  of_loop_ = results.features;
  loops_.push_back(results);
  return results;
}

TrainingPipeline PerformanceOptimizer::optimize_training_pipeline(ModelState model, Loader& loader, Optimizer optimizer,
                                                                  Forward forward) {
  TrainingPipeline pipeline{.loop = begin_loop(std::move(model), std::move(optimizer), std::move(forward), loader),
                            .live_tuning = live_tuning_row(config_)};
  const std::vector<Applied> status = get_optimization_status();
  for (const SettingComponent& component : kPerformanceComponents) {
    std::vector<Applied> rows;
    for (const std::string_view name : component.settings) rows.push_back(*row_of(status, name));
    pipeline.features.emplace_back(component.name, std::move(rows));
  }
  return pipeline;
}

std::vector<Applied> PerformanceOptimizer::get_optimization_status() const {
  const std::vector<Applied> of_model = model_optimizer_.report();
  const std::vector<Applied> of_loop = of_loop_.value_or(training_optimizer_.report());
  std::vector<Applied> rows;
  for (const std::string& name : performance_setting_names()) {
    const Applied* row = row_of(of_model, name);
    if (row == nullptr) row = row_of(of_loop, name);
    if (row == nullptr && name == "num_workers" && num_workers_) row = &*num_workers_;
    std::string_view reason = why_not(name);
    if (name == "num_workers") reason = config_.set_by(name) == SetBy::by_default ? kOwnWorkers : kNoLoop;
    if (name == "batch_size_optimization" && batch_optimizer_.plan()) reason = "";
    rows.push_back(row == nullptr ? setting_row(config_, name, reason) : *row);
  }
  return rows;
}

std::string PerformanceOptimizer::get_performance_summary() const {
  PerformanceFacts facts{.config = config_,
                         .status = get_optimization_status(),
                         .compile_enabled = model_optimizer_.compile_enabled(),
                         .loops = loops_,
                         .batch_plan = batch_optimizer_.plan()};
  for (const HardwareSettings& settings : hardware_) {
    facts.hardware.insert(facts.hardware.end(), settings.settings().begin(), settings.settings().end());
  }
  if (profiler_ != nullptr) facts.profiling = profiler_->get_profile_summary();
  if (monitor_ != nullptr) facts.monitor = monitor_->get_performance_summary();
  facts.not_built = cache().status;
  return performance_summary(facts);
}

void PerformanceOptimizer::clear_metrics() {
  loops_.clear();
  if (profiler_ != nullptr) profiler_->clear();
  batch_optimizer_.clear();
  if (monitor_ != nullptr) monitor_->clear_metrics();
}

void PerformanceOptimizer::cleanup() {
  monitor_.reset();  // Which writes out what is left.
  std::exception_ptr first;
  while (!hardware_.empty()) {
    HardwareSettings last = std::move(hardware_.back());
    hardware_.pop_back();
    try {
      last.undo();
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

PerformanceOptimizer create_performance_optimizer(OptimizationLevel level) {
  return PerformanceOptimizer(level);
}

PerformanceOptimizer create_performance_optimizer(const PerformanceConfig& config) {
  return PerformanceOptimizer(config);
}

TrainingResults optimize_training_loop(const ModelState& model, Loader& loader, Optimizer& optimizer,
                                       const Forward& forward, std::int64_t num_epochs,
                                       const PerformanceConfig& config) {
  return PerformanceOptimizer(config).optimize_training_loop(model, loader, optimizer, forward, num_epochs);
}

}  // namespace headrace::facade
