#include "insight/measure/resource_figures.h"

#include <algorithm>
#include <cstddef>

#include "core/hardware/memory_stall.h"

namespace headrace {

std::optional<LoadingStages> loading_between(const std::optional<LoadingTotals>& before,
                                             const std::optional<LoadingTotals>& after) {
  if (!before || !after) return std::nullopt;
  LoadingStages loading;
  loading.num_workers = after->num_workers;
  loading.prefetch_batches = after->prefetch_batches;
  const double batches = after->batches - before->batches;
  if (!(batches > 0)) return std::nullopt;
  loading.read_s = std::max(0.0, after->read_s - before->read_s) / batches;
  loading.decode_s = std::max(0.0, after->decode_s - before->decode_s) / batches;
  loading.augment_s = std::max(0.0, after->augment_s - before->augment_s) / batches;
  loading.collate_s = std::max(0.0, after->collate_s - before->collate_s) / batches;
  const std::size_t known = std::min(before->batch_s.size(), after->batch_s.size());
  loading.batch_s.assign(after->batch_s.begin() + static_cast<std::ptrdiff_t>(known), after->batch_s.end());
  return loading;
}

void add_machine(ResourceFigures& figures, const std::optional<MachinePeaks>& peaks, const StepWork& work,
                 std::int64_t steps) {
  if (work.between_operators_s) figures.python_in_compute_s = *work.between_operators_s * static_cast<double>(steps);
  figures.flops_per_step = work.flops;
  figures.update_bytes = work.update_bytes;
  figures.update_tensors = work.update_tensors;
  figures.transfer_bytes = work.transfer_bytes;
  if (peaks) {
    figures.peak_flops_per_s = peaks->flops_per_s;
    figures.peak_bytes_per_s = peaks->copy_bytes_per_s;
    figures.page_fault_s = peaks->page_fault_s;
  }
  if (!work.flops) figures.why_no_peak = work.why_no_flops;
  if (!peaks) figures.why_no_peak = "the peak was not measured";
}

FigureRecorder::FigureRecorder(MeasurableJob& job)
    : job_(job),
      loading_(job.loading_totals()),
      garbage_s_(job.garbage_s()),
      stall_s_(memory_stall_s()),
      delays_(sibling_delays()) {
  job_.set_counts_use(true);
}

ResourceFigures FigureRecorder::end(const TimeSplit& split, int compute_threads) {
  ResourceFigures figures;
  figures.use = job_.part_uses(split.steps);
  figures.run_delay_known = job_.knows_run_delay();
  job_.set_counts_use(false);
  figures.compute_threads = compute_threads;
  figures.loading = loading_between(loading_, job_.loading_totals());
  const std::optional<double> garbage_s = job_.garbage_s();
  if (garbage_s_ && garbage_s) figures.garbage_s = std::max(0.0, *garbage_s - *garbage_s_);
  const std::optional<double> stall_s = memory_stall_s();
  if (stall_s_ && stall_s) figures.memory_stall_s = std::max(0.0, *stall_s - *stall_s_);
  if (const auto ns = longest_delay_between(delays_, sibling_delays())) {
    figures.thread_delay_s = static_cast<double>(*ns) * 1e-9;
  }
  if (figures.loading && figures.loading->read_s > 0) {
    if (const auto times = job_.read_times()) {
      // Of one thread, as the first reading is; the loader's own figure may hold what others do to it.
      figures.loading->warm_read_s = figures.loading->read_s * times->again_s / std::max(times->first_s, 1e-9);
    }
  }
  add_machine(figures, job_.peaks(), job_.step_work(), split.steps);
  return figures;
}

}  // namespace headrace
