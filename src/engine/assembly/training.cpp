#include "engine/assembly/training.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <headrace/frozen_parts.h>
#include <headrace/loss.h>
#include <headrace/parameter_groups.h>
#include <headrace/swa_average.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/fail.h"
#include "core/hardware/wait_policy.h"
#include "data/source/held_out.h"
#include "data/store/file_name.h"
#include "data/transform/eval_transform.h"
#include "engine/assembly/process_settings.h"
#include "engine/assembly/state.h"
#include "torch/model/attention_kernel.h"
#include "torch/tensor/compute.h"

namespace headrace {

namespace {

// Which form the optimizer's update has. No other is refused on the CPU: what a kernel does not take, as a sparse
// gradient, is updated by itself.
Applied applied_implementation(const OptimizerOptions& options) {
  const OptimizerImplementation implementation = options.implementation();
  const bool is_foreach = implementation == OptimizerImplementation::foreach_;
  const bool is_on = implementation != OptimizerImplementation::for_loop;
  return {is_foreach ? "optimizer.foreach" : "optimizer.fused",
          std::string(choice_name(is_foreach ? options.foreach : options.fused)), is_on ? "true" : "false", ""};
}

at::ScalarType computed_in(Precision precision) {
  if (precision == Precision::fp32) return at::kFloat;
  return precision == Precision::bf16 ? at::kBFloat16 : at::kHalf;
}

// Keys of a Trainer that say something of a device's steps alone, where the recipe asks for what is not their default.
std::vector<Applied> applied_of_device(const TrainOptions& options) {
  const TrainOptions defaults;
  std::vector<Applied> applied;
  if (options.cuda_graph) {
    applied.push_back({"train.cuda_graph", "true", "false", "the model is on the CPU, where nothing is captured"});
  }
  if (options.loss_interval != defaults.loss_interval) {
    applied.push_back({"train.loss_interval", fmt::format("{}", options.loss_interval), "1",
                       "the model is on the CPU, where each loss is read at once"});
  }
  return applied;
}

// What every network of a recipe takes and learns.
void require_images_and_classes(const Source& source, const std::string& uri) {
  const Schema& schema = source.info().schema;
  if (!schema.image() || schema.find("image") != schema.image() || !schema.find("labels")) {
    fail(ErrorCode::invalid_argument, "model: a recipe's network reads the fields image and labels; {} has {}",
         printable_name(uri), schema.text());
  }
  if (source.info().num_classes == kUnknownClasses) {
    fail(ErrorCode::invalid_argument,
         "model: a recipe's network learns model.num_classes classes; {} does not tell its", printable_name(uri));
  }
}

}  // namespace

Forward classification_forward(Network& network, const LossOptions& loss) {
  return [&network, loss](const TensorBatch& batch) {
    return classification(network.forward(batch["image"]), batch, loss);
  };
}

Training::Training(const Recipe& recipe, const Machine& machine) : recipe_(recipe), machine_(machine) {
  apply_compute();
  at::globalContext().setDeterministicAlgorithms(recipe_.train.deterministic, /*warn_only=*/false);
  const auto seed = static_cast<std::uint64_t>(recipe_.seed);
  train_source_ = open_split(recipe_.data, seed, Split::train);
  val_source_ = find_split(recipe_.data, seed, Split::val);
  test_source_ = find_split(recipe_.data, seed, Split::test);
  std::int64_t classes = 0;
  for (const auto& source : {train_source_, val_source_, test_source_}) {
    if (source == nullptr) continue;
    require_images_and_classes(*source, recipe_.data.source);
    classes = std::max(classes, source->info().num_classes);
    if (source == val_source_ && recipe_.data.val_fraction > 0) continue;  // Its remarks are train's.
    for (const std::string& remark : source->info().remarks) remarks_.push_back(remark);
  }
  if (classes > recipe_.model.num_classes) {
    fail(ErrorCode::invalid_argument, "model: model.num_classes is {}, the data has {} classes",
         recipe_.model.num_classes, classes);
  }
  at::manual_seed(seed);
  use_loaders(recipe_.data);
  network_ = make_network(recipe_.model, loader().channels(), loader().height(), loader().width());
  if (recipe_.train.swa_start > 0 && script_file(recipe_.model.name)) {
    network_->average_statistics(true);  // Its error before the first step; else it does nothing.
  }

  ModelState state = network_->state();
  Optimizer optimizer{parameter_groups(state.parameters, recipe_.optimizer)};
  trainer_ =
      std::make_unique<Trainer>(std::move(state), std::move(optimizer), classification_forward(*network_, recipe_.loss),
                                recipe_.train, recipe_.lr_scheduler, check_run_length(recipe_, train_source_->size()));
  trainer_->set_memory_format(recipe_.model.memory_format);
  note_applied();
  const std::string crowd = oversubscription(core_split().loading, compute_threads(), machine_.cores_usable);
  if (!crowd.empty()) remarks_.push_back(crowd + ": data.num_workers = \"auto\" finds how many pay");
}

CoreSplit Training::core_split() const {
  return split_cores(machine_.cores_usable, recipe_.compute.intra_op_threads, recipe_.data.num_workers);
}

void Training::use_loaders(const DataOptions& options) {
  const LoaderForm form = form_of(options);
  Loaders& wanted = all_loaders_[form];
  if (wanted.train == nullptr) {
    const auto seed = static_cast<std::uint64_t>(recipe_.seed);
    DataOptions trial = options;
    if (form.second) trial.index = IndexUse::use;
    auto train = std::make_unique<Loader>(form.second ? trial_index_->source() : train_source_, trial, seed,
                                          /*training=*/true);
    if (val_source_ != nullptr) wanted.val = std::make_unique<Loader>(val_source_, trial, seed, /*training=*/false);
    trial.cache = Cache::none;  // Test is read once: a cache would be filled for nobody.
    if (test_source_ != nullptr) wanted.test = std::make_unique<Loader>(test_source_, trial, seed, /*training=*/false);
    wanted.train = std::move(train);  // All, or none that a later call would take for all.
  }
  if (loaders_ != nullptr && loaders_ != &wanted) {
    for (Loader* idle : {loaders_->train.get(), loaders_->val.get(), loaders_->test.get()}) {
      if (idle != nullptr) idle->set_num_workers(0);
    }
  }
  loaders_ = &wanted;
}

bool Training::renew_statistics(const std::function<bool()>& stop) {
  struct Averaging {
    Network& network;
    ~Averaging() { network.average_statistics(false); }
  };
  const Averaging averaging{*network_};
  return !network_->average_statistics(true) || forward_epoch(*trainer_, loader(), trainer_->progress().epoch, stop);
}

void Training::note_applied() {
  if (!recipe_.model.frozen.empty()) {
    const std::string parts = fmt::format("{}", fmt::join(recipe_.model.frozen, ", "));
    applied_.push_back({"model.frozen", parts, parts, ""});
  }
  applied_.push_back(applied_implementation(recipe_.optimizer));
  const auto attention =
      applied_attention(recipe_.model, loader().height(), loader().width(), computed_in(recipe_.train.precision));
  if (attention) applied_.push_back(*attention);
  const std::vector<Applied> of_device = applied_of_device(recipe_.train);
  applied_.insert(applied_.end(), of_device.begin(), of_device.end());
  if (recipe_.train.memory_limit_mib > 0) applied_.push_back(trainer_->applied_memory_limit());
  // Where there can be no index, nobody asked for one but the default.
  if (!train_source_->info().index_file.empty() || recipe_.data.index == IndexUse::build) {
    applied_.push_back(loader().applied_index());
  }
}

std::string Training::frozen_text() const {
  return recipe_.model.frozen.empty() ? "" : headrace::frozen_text(trainer_->model());
}

std::vector<Applied> Training::applied() const {
  std::vector<Applied> all = applied_;
  const std::vector<Applied> of_network = network_->checkpointing_report().applied;
  all.insert(all.end(), of_network.begin(), of_network.end());
  return all;
}

std::vector<Applied> Training::decided() const {
  std::vector<Applied> all = applied();
  if (network_->checkpointing_report().saved_bytes_before) return all;  // A step was measured, and blocks are chosen.
  std::erase_if(all, [](const Applied& setting) { return setting.key == "model.checkpoint_budget_mib"; });
  return all;
}

void Training::apply_compute() {
  const ComputeOptions& compute = recipe_.compute;
  applied_.clear();
  applied_.push_back(apply_compute_threads(core_split().compute));
  for (const ProcessSetting& setting : all_process_settings()) {
    applied_.push_back(setting.apply(recipe_));  // After the threads, which it may concern.
  }
  applied_.push_back(wait_policy_in_force(compute.wait_policy));
}

void Training::apply_live(const Recipe& next) {
  recipe_ = next;
  apply_compute();
  use_loaders(next.data);
  for (Loader* in_use : {&loader(), val_loader(), test_loader()}) {
    if (in_use == nullptr) continue;
    in_use->set_num_workers(next.data.num_workers);
    in_use->set_prefetch_batches(next.data.prefetch_batches);
    if (in_use != test_loader()) in_use->set_cache(next.data.cache, /*keep=*/true);
  }
  network_->set_fusion(next.model.fusion);
  trainer_->set_memory_format(next.model.memory_format);
  trainer_->optimizer().set_implementation(next.optimizer.implementation());
  trainer_->set_precision(next.train.precision);
  note_applied();
}

void Training::apply_live(const Recipe& next, const Settings& asked) {
  const Recipe before = recipe_;
  try {
    apply_live(next);
    for (const Applied& applied : applied_) {
      if (!asked.contains(applied.key) || applied.holds()) continue;
      fail(ErrorCode::unsupported, "assembly: {} = {} is not applied ({}): {}", applied.key, applied.requested,
           applied.applied, applied.reason);
    }
  } catch (...) {
    apply_live(before);
    throw;
  }
}

BatchPlan Training::plan_micro_batch() {
  std::optional<Batch> host;
  {
    Epoch epoch = loader().epoch(0);  // Ends here, so that nothing is loaded beside the probes.
    host = epoch.next();
  }
  if (!host) fail(ErrorCode::invalid_argument, "assembly: the training data gives no batch");
  const TensorBatch batch = trainer_->transfer(*host);
  const Forward forward = classification_forward(*network_, recipe_.loss);
  const auto batch_of = [&](std::int64_t samples) -> BoundForward {
    return [&forward, some = batch.part(0, samples)] { return forward(some); };
  };
  const std::int64_t whole = batch.size();
  BatchPlannerOptions options;
  options.initial_batch_size = std::min(options.initial_batch_size, whole);
  options.max_batch_size = options.global_batch_size = whole;
  BatchPlan plan = plan_batch_size(*trainer_, batch_of, options);
  trainer_->progress().micro_batch = plan.batch_size < whole ? plan.batch_size : 0;
  return plan;
}

Forward Training::frozen_forward() const {
  return [frozen = network_->frozen(), loss = recipe_.loss](const TensorBatch& batch) {
    return classification(frozen(batch["image"]), batch, loss);
  };
}

void Training::write_eval_transform(const std::filesystem::path& run) const {
  const Source& source = val_source_ != nullptr    ? *val_source_
                         : test_source_ != nullptr ? *test_source_
                                                   : *train_source_;
  transform::write_eval_transform(transform::eval_transform_of(recipe_.data, source.info().schema), run);
}

DataContext Training::data_context() const {
  DataContext context =
      data_context_of(*train_source_, loader(), recipe_.data, static_cast<std::uint64_t>(recipe_.seed));
  context.trial_index = trial_index_ != nullptr;
  return context;
}

std::string Training::make_trial_index(const std::function<bool(std::int64_t done)>& go_on) {
  const DataOptions& data = recipe_.data;
  const SourceInfo& info = train_source_->info();
  const std::filesystem::path path = info.index_file;
  if (path.empty() || data.cache != Cache::none || data.index == IndexUse::build || std::filesystem::exists(path)) {
    return "";
  }
  const transform::CropKind crop = first_crop(info.schema, data).kind;
  if (crop != transform::CropKind::random && crop != transform::CropKind::random_resized) return "";
  if (!can_write_index(*train_source_)) {
    return fmt::format("data.index = \"build\" is not tried: {} cannot be written to",
                       printable_name(path.parent_path().native()));
  }
  std::int64_t last = 0;
  const auto counted = [&](std::int64_t done) {
    last = done;
    return go_on(done);
  };
  trial_index_ = TrialIndex::make(train_source_, machine_.cores_usable, counted);
  if (trial_index_ != nullptr) return "";
  return fmt::format(
      "data.index = \"build\" is not tried: {} of {} images were indexed in a tenth of tune.budget_s; `headrace pack "
      "--index` makes the index once",
      last, train_source_->size());
}

std::filesystem::path Training::trial_index_file() const {
  return trial_index_ == nullptr ? std::filesystem::path{} : trial_index_->source()->info().index_file;
}

void Training::use_trial_index(const std::filesystem::path& file) {
  trial_index_ = std::make_unique<TrialIndex>(train_source_, file);
}

std::unique_ptr<Network> Training::float64_network() {
  ModelOptions plain = recipe_.model;
  plain.fusion = Fusion::none;
  plain.weights.clear();  // The values come from the network at hand.
  plain.weights_except.clear();
  std::unique_ptr<Network> network = make_network(plain, loader().channels(), loader().height(), loader().width());
  const at::NoGradGuard no_grad;
  const ModelState target = network->state(), &source = trainer_->model();
  const auto convert = [](const NamedTensors& into, const NamedTensors& from) {
    for (std::size_t i = 0; i < into.size(); ++i) {
      const at::Tensor value = from[i].second.detach().contiguous();
      into[i].second.set_data(value.is_floating_point() ? value.to(at::kDouble) : value.clone());
    }
  };
  convert(target.parameters, source.parameters);
  convert(target.buffers, source.buffers);
  return network;
}

}  // namespace headrace
