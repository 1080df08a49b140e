#include "app/advice/loading_input.h"

#include <algorithm>
#include <utility>

namespace headrace {
namespace {

double seconds_of_each(std::int64_t ns, std::int64_t count) {
  return count == 0 ? 0 : static_cast<double>(ns) * 1e-9 / static_cast<double>(count);
}

}  // namespace

LoadingInput loading_input(const Loader& loader, const Machine& machine, std::int64_t compute_threads) {
  const LoaderStatistics now = loader.statistics();
  LoadingInput input;
  input.costs.read_s = seconds_of_each(now.read_ns, now.samples);
  input.costs.decode_s = seconds_of_each(now.decode_ns, now.samples);
  input.costs.augment_s = seconds_of_each(now.busy_ns - now.read_ns - now.decode_ns, now.samples);
  input.costs.collate_s = seconds_of_each(now.collate_ns, now.samples);
  if (now.cpu_busy_ns > 0) {
    input.cpu_share = std::clamp(static_cast<double>(now.cpu_ns) / static_cast<double>(now.cpu_busy_ns), 0.0, 1.0);
  }
  input.consumer_busy_s = seconds_of_each(now.consumer_busy_ns, now.delivered);
  const double cycle_s = input.consumer_busy_s + seconds_of_each(now.wait_for_batch_ns, now.delivered);
  input.num_workers = static_cast<int>(now.num_workers);
  input.compute_threads = static_cast<int>(compute_threads);
  input.cores = machine.cores_usable;
  // Without threads the consumer waits for nobody, and loads in between.
  const double each_s = now.num_workers == 0 ? input.consumer_busy_s + input.costs.sample_s() : cycle_s;
  if (each_s > 0) input.samples_per_second = 1 / each_s;
  for (TransformCost& cost : loader.transform_costs()) {
    input.transforms.push_back(
        {std::move(cost.name), std::move(cost.setting), cost.read_share, cost.decode_share, cost.augment_share});
  }
  input.gpu = machine.gpu;
  return input;
}

std::optional<Report::LoadingPlan> loading_plan(const Loader& loader) {
  const LoaderPlan plan = loader.explain();
  if (!plan.moved) return std::nullopt;
  Report::LoadingPlan shown;
  for (const LoaderPlan::Pass& pass : plan.passes) {
    shown.passes.push_back({pass.name, pass.samples, pass.bytes_in.value_or(0), pass.bytes_out.value_or(0)});
  }
  for (const TransformStep& step : plan.transforms) shown.transforms.push_back({step.operations, step.fused, step.why});
  shown.copied = plan.moved->copied;
  shown.touched = plan.moved->touched;
  if (!plan.moved_stage_by_stage) return shown;
  shown.stages = std::ssize(plan.stage_by_stage);
  shown.copied_by_stages = plan.moved_stage_by_stage->copied;
  shown.touched_by_stages = plan.moved_stage_by_stage->touched;
  return shown;
}

}  // namespace headrace
