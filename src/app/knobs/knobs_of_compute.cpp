// Knobs of the network, the optimizer, and what the process computes with.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "app/knobs/knob.h"
#include "core/exec/cores.h"
#include "core/hardware/wait_policy.h"
#include "insight/tune/tuner.h"

namespace headrace::knobs {

Knob fusion() {
  return {
      .key = "model.fusion",
      .name = "fused normalisation",
      .not_applicable = [](const KnobContext& context) -> std::string {
        if (context.door == Door::python) return "the network is your own: it replaces layers of headrace's";
        if (context.recipe.model.name != "small_cnn") {
          return "only small_cnn has batch normalisation, ReLU and pooling in this order";
        }
        return context.recipe.model.fusion == Fusion::norm_relu_pool ? "the recipe has it already" : "";
      },
      .values = [](const KnobContext&) -> std::vector<KnobValue> {
        return {{.name = "fused normalisation",
                 .sentence = "Batch normalisation, ReLU and pooling as one operator that reads the images fewer times.",
                 .changes = {{"model.fusion", "\"norm_relu_pool\""}}}};
      },
      .numerics = NumericClass::rounding,
      .resource = "compute"};
}

Knob memory_format() {
  return {.key = "model.memory_format",
          .name = "channels-last",
          .not_applicable = [](const KnobContext& context) -> std::string {
            const bool has_it = context.recipe.model.memory_format == MemoryFormat::channels_last;
            return has_it ? "the recipe has it already" : "";
          },
          .values = [](const KnobContext&) -> std::vector<KnobValue> {
            return {{.name = "channels-last",
                     .sentence = "Images and convolution weights as NHWC, the layout convolutions are fastest in.",
                     .changes = {{"model.memory_format", "\"channels_last\""}}}};
          },
          .numerics = NumericClass::rounding,
          .resource = "compute",
          .switch_s = 0.02};  // Parameters, gradients and momentum of 11 million numbers are copied.
}

Knob precision() {
  return {.key = "train.precision",
          .name = "bf16 autocast",
          .not_applicable = [](const KnobContext& context) -> std::string {
            return context.recipe.train.precision == Precision::bf16 ? "the recipe has it already" : "";
          },
          .values = [](const KnobContext&) -> std::vector<KnobValue> {
            return {{.name = "bf16 autocast",
                     .sentence = "Convolutions and matrix products in bfloat16; parameters stay float32.",
                     .changes = {{"train.precision", "\"bf16\""}}}};
          },
          .numerics = NumericClass::reduced_precision,
          .resource = "compute"};
}

Knob fused() {
  return {.key = "optimizer.fused",
          .name = "fused optimizer",
          .not_applicable = [](const KnobContext& context) -> std::string {
            const bool is_fused = context.recipe.optimizer.implementation() == OptimizerImplementation::fused;
            return is_fused ? "the optimizer is fused already" : "";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            Settings changes{{"optimizer.fused", "true"}};
            if (context.recipe.optimizer.foreach == Switch::on) changes["optimizer.foreach"] = "false";
            return {{.name = "fused optimizer",
                     .sentence = "Update all parameters in one kernel instead of operator by operator.",
                     .changes = std::move(changes)}};
          },
          .numerics = NumericClass::rounding,
          .resource = "compute"};
}

// For a CPU, as it is torch's own choice on a GPU, and above all for optimizers without a fused implementation.
Knob foreach_optimizer() {
  return {.key = "optimizer.foreach",
          .name = "foreach optimizer",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (context.door == Door::recipe) return "a recipe's optimizers have a fused implementation";
            return context.live ? "" : "headrace.autotune tries it while a run goes on";
          },
          .values = [](const KnobContext&) -> std::vector<KnobValue> {
            return {{.name = "foreach optimizer",
                     .sentence = "Update by operators over lists of all parameters instead of one after the other.",
                     .changes = {{"optimizer.foreach", "true"}}}};
          },
          .numerics = NumericClass::rounding,
          .resource = "compute",
          .excludes = {"optimizer.fused"}};
}

Knob allocator() {
  return {
      .key = "compute.allocator",
      .name = "arena for tensors",
      .not_applicable = [](const KnobContext& context) -> std::string {
        return context.recipe.compute.allocator == Allocator::arena ? "tensors live in the arena already" : "";
      },
      .values = [](const KnobContext&) -> std::vector<KnobValue> {
        return {{.name = "arena for tensors",
                 .sentence = "Tensors in memory that stays mapped from step to step.",
                 .changes = {{"compute.allocator", "\"arena\""}}}};
      },
      .numerics = NumericClass::bit_equal,
      .resource = "compute",
  };
}

// The loader's threads have the mode of the one that started them, and a loader without threads that of the caller. No
// byte of a batch depends on it: pixels over a standard deviation of at most 1,000 are 0 or far above 1e-38.
Knob flush_denormal() {
  return {.key = "compute.flush_denormal",
          .name = "denormals as 0",
          .not_applicable = [](const KnobContext& context) -> std::string {
            return context.recipe.compute.flush_denormal ? "numbers below 1.2e-38 count as 0 already" : "";
          },
          .values = [](const KnobContext&) -> std::vector<KnobValue> {
            return {{.name = "denormals as 0",
                     .sentence = "Numbers below 1.2e-38 count as 0, which spares what they cost the processor.",
                     .changes = {{"compute.flush_denormal", "true"}}}};
          },
          .numerics = NumericClass::rounding,
          .resource = "compute"};
}

namespace {

std::int64_t threads_now(const KnobContext& context) {
  const std::int64_t written = context.recipe.compute.intra_op_threads;
  return written == 0 ? context.cores : written;
}

KnobValue compute_threads(const KnobContext& context, std::int64_t count) {
  KnobValue value{
      .name = fmt::format("compute threads {}", count),
      .sentence =
          fmt::format("Compute with {} thread{} instead of {}.", count, count == 1 ? "" : "s", threads_now(context)),
      .changes = {{"compute.intra_op_threads", fmt::format("{}", count)}},
      .resource = count == context.cores ? "compute" : "data",
  };
  if (context.door == Door::python) return value;
  if (count == context.cores) {
    value.name = "every core for compute";
  } else if (count == context.cores - 1) {
    value.name = "a core for loading";
    value.sentence =
        fmt::format("Compute with {} thread{} and leave one core to the loader.", count, count == 1 ? "" : "s");
  }
  return value;
}

}  // namespace

Knob intra_op_threads() {
  return {.key = "compute.intra_op_threads",
          .name = "compute threads",
          .not_applicable = [](const KnobContext& context) -> std::string {
            return context.cores == 1 && threads_now(context) == 1 ? "there is one core" : "";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            std::vector<std::int64_t> counts{context.cores, std::max<std::int64_t>(1, context.cores - 1), 1};
            counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
            std::erase(counts, threads_now(context));
            std::vector<KnobValue> values;
            for (const std::int64_t count : counts) values.push_back(compute_threads(context, count));
            return values;
          },
          .numerics = NumericClass::rounding,
          .resource = "compute",
          .divides_cores = true};
}

namespace {

std::string why_no_wait_policy(const KnobContext& context) {
  if (context.door == Door::python) return "read when libgomp loads: set OMP_WAIT_POLICY before Python starts";
  if (threads_now(context) == 1) return "one thread computes, and no other one waits for it";
  return has_spin_count() ? "GOMP_SPINCOUNT is set, and libgomp takes it in place of a policy" : "";
}

// "system" is what the environment says, and so no value to try.
std::vector<KnobValue> wait_policies(const KnobContext&) {
  const WaitPolicy in_force = wait_policy_of_environment();
  std::vector<KnobValue> values;
  for (const auto& [policy, does] : {std::pair{WaitPolicy::active, "spin"}, std::pair{WaitPolicy::passive, "sleep"}}) {
    if (policy == in_force) continue;
    const std::string_view name = choice_name(policy);
    values.push_back({.name = fmt::format("wait policy {}", name),
                      .sentence = fmt::format("Compute threads that wait for the next operator {} (OMP_WAIT_POLICY); "
                                              "timed in processes that start so.",
                                              does),
                      .changes = {{"compute.wait_policy", fmt::format("\"{}\"", name)}}});
  }
  return values;
}

}  // namespace

// Which thread makes which part of a sum does not depend on how it waits.
Knob wait_policy() {
  return {.key = "compute.wait_policy",
          .name = "wait policy",
          .not_applicable = why_no_wait_policy,
          .values = wait_policies,
          .numerics = NumericClass::bit_equal,
          .resource = "compute",
          .switches = Switches::new_process,
          .prepare_s = 5};  // A guess: two processes load LibTorch and the data.
}

namespace {

KnobValue division(const KnobContext& context, const CoreSplit& split) {
  return {.name = fmt::format("loaders {} with compute threads {}", split.loading, split.compute),
          .sentence = fmt::format("{} of the {} cores to loading, and {} thread{} to compute.", split.loading,
                                  context.cores, split.compute, split.compute == 1 ? "" : "s"),
          .changes = {{"data.num_workers", fmt::format("{}", split.loading)},
                      {"compute.intra_op_threads", fmt::format("{}", split.compute)}}};
}

std::vector<KnobValue> divisions(const KnobContext& context) {
  std::vector<KnobValue> values;
  for (const CoreSplit& split : splits_to_try(static_cast<int>(context.cores))) {
    const bool changes_both = split.loading != context.recipe.data.num_workers && split.compute != threads_now(context);
    if (changes_both) values.push_back(division(context, split));
  }
  return values;
}

std::string why_not_divided(const KnobContext& context) {
  if (context.live) return "loading and compute take turns by themselves while the run goes on";
  if (context.loader == LoaderKind::other) return context.no_dataloader();
  if (context.loader == LoaderKind::torch) {
    if (context.has_replacement && !is_fixed("data.loader", context.recipe.tune.fixed)) {
      return "a headrace.Loader may take the DataLoader's place, with a number of threads of its own";
    }
    if (context.workers_change_batches) return "another number of workers brings other draws";
  }
  if (context.cores == 1) return "there is one core";
  return divisions(context).empty() ? "the knobs of either side hold all that there is to try" : "";
}

}  // namespace

// More threads that load may pay only beside fewer that compute, and fewer that compute only beside more that load. The
// knobs of either side change one; this one comes behind them, so that what is kept of them is divided anew, too.
Knob core_division() {
  return {.key = "compute.division",
          .name = "division of the cores",
          .not_applicable = why_not_divided,
          .values = divisions,
          .numerics = NumericClass::rounding,
          .resource = "data",
          .carries_over = true,
          .python = true,  // It has no option of its own.
          .divides_cores = true};
}

}  // namespace headrace::knobs
