#include "insight/diagnose/detail/resource_losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/loading_losses.h"

namespace headrace::detail {
namespace {

constexpr double kUpdatePasses = 3;          // An update that is written well reads and writes its tensors in so many.
constexpr double kUpdateOfTensor_s = 20e-6;  // What it costs beside, of each tensor.
constexpr double kUsualUpdate = 0.10;        // Of a step, where nobody knows its bytes.
constexpr double kBarrier = 0.05;  // Of forward and backward: what several threads wait for each other anyway.
constexpr double kUsualFaults =
    0.10;  // Of a step: pages of activations, which an allocator without an arena gives back.
constexpr double kMajorFault_s = 100e-6;  // A page from a solid-state disk.
constexpr double kGuess = 0.5;            // Half of the interval of what is estimated and not timed, of its middle.

// Half of the 95 % interval of their mean, over it. Neighbouring steps are alike, so means of blocks are compared.
double relative_error(const std::vector<double>& values) {
  constexpr std::size_t kBlocksMin = 4, kBlocksMax = 10;
  constexpr std::array<double, kBlocksMax - kBlocksMin + 1> kStudent{3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26};
  if (values.size() < kBlocksMin) return kGuess;
  const std::size_t blocks = std::min(values.size(), kBlocksMax);
  std::vector<double> means;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t begin = block * values.size() / blocks, end = (block + 1) * values.size() / blocks;
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += values[i];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  const auto count = static_cast<double>(blocks);
  const double mean = std::accumulate(means.begin(), means.end(), 0.0) / count;
  if (!(mean > 0)) return 0;
  double squares = 0;
  for (const double one : means) squares += (one - mean) * (one - mean);
  const double error = kStudent[blocks - kBlocksMin] * std::sqrt(squares / (count - 1) / count);
  return std::min(1.0, error / mean);
}

std::vector<double> series(const TimeSplit& split, double TimeSplit::Parts::*part) {
  std::vector<double> values;
  for (const TimeSplit::Parts& parts : split.parts) values.push_back(parts.*part);
  return values;
}

std::string of_a_step(double seconds, const StepMeans& mean) {
  return fmt::format("{}, {} of a step", milliseconds_text(seconds), percent_text(seconds / mean.step_s));
}

class Estimator {
 public:
  Estimator(const TimeSplit& split, const ResourceFigures& figures)
      : split_(split), figures_(figures), mean_(means_of(split)) {}

  Losses run() {
    add_loading();
    add_transfer();
    add_optimizer();
    if (figures_.use) {
      add_memory();
      add_synchronisation();
    } else {
      note_no_use();
    }
    add_own_code();
    add_cores();
    add_ranks();
    return std::move(losses_);
  }

 private:
  double of_step(double total) const { return total / mean_.steps; }
  double page_s(std::int64_t faults) const {
    return figures_.page_fault_s ? of_step(static_cast<double>(faults) * *figures_.page_fault_s) : 0;
  }
  // Of a loss that is a part of a step less what is usual of it, over the loss: the part's own interval is as wide.
  double error_of(double TimeSplit::Parts::*part, double part_s, double lost_s) const {
    return lost_s > 0 ? relative_error(series(split_, part)) * part_s / lost_s : 0;
  }
  void add(Resource resource, double lost_s, double error, std::string evidence) {
    if (!(lost_s > 0)) return;
    losses_.known.push_back(loss_of(resource, lost_s, error, std::move(evidence)));
  }

  void add_loading() {
    LoadingLosses found =
        loading_losses(mean_, relative_error(series(split_, &TimeSplit::Parts::data_wait_s)), figures_);
    taken_by_loading_s_ = found.taken_from_compute_s;
    taking_is_measured_ = found.taking_is_measured;
    for (LossEstimate& loss : found.stages) losses_.known.push_back(std::move(loss));
    if (found.unknown_s > losses_.unknown_s) {
      losses_.unknown_s = found.unknown_s;
      losses_.unknown = "the loop waits for data, and what its loader spends its time on is unavailable";
    }
    if (found.unknown_s > 0)
      losses_.unavailable.emplace_back("storage, decode, augment, collate: nobody timed the loader's stages");
  }

  void add_transfer() {
    double least_s = 0;
    if (figures_.transfer_bytes && figures_.peak_bytes_per_s) {
      least_s = 2 * static_cast<double>(*figures_.transfer_bytes) / *figures_.peak_bytes_per_s;
    }
    const double lost_s = mean_.transfer_s - least_s;
    add(Resource::transfer, lost_s, error_of(&TimeSplit::Parts::transfer_s, mean_.transfer_s, lost_s),
        fmt::format("moving a batch takes {}", of_a_step(mean_.transfer_s, mean_)));
  }

  void add_optimizer() {
    double usual_s = kUsualUpdate * mean_.step_s;
    if (figures_.update_bytes && figures_.peak_bytes_per_s) {
      usual_s = kUpdatePasses * static_cast<double>(*figures_.update_bytes) / *figures_.peak_bytes_per_s +
                kUpdateOfTensor_s * static_cast<double>(figures_.update_tensors);
    } else {
      losses_.unavailable.emplace_back(
          "optimizer: what its update takes at least is unknown; a tenth of a step is taken for usual");
    }
    const double delay_s = figures_.use ? of_step(figures_.use->optimizer.run_delay_s) : 0;
    const double lost_s = mean_.optimizer_s - delay_s - usual_s;
    add(Resource::optimizer, lost_s, error_of(&TimeSplit::Parts::optimizer_s, mean_.optimizer_s, lost_s),
        fmt::format("the update takes {}, where {} would be usual", of_a_step(mean_.optimizer_s, mean_),
                    milliseconds_text(usual_s)));
  }

  void add_memory() {
    const PartUses& use = *figures_.use;
    if (!figures_.page_fault_s) {
      losses_.unavailable.emplace_back("memory: what a page from the system costs here was not measured");
    }
    const std::int64_t in_compute = use.forward.minor_faults + use.backward.minor_faults;
    const std::int64_t beside = use.transfer.minor_faults + use.optimizer.minor_faults + use.other.minor_faults;
    pages_in_own_code_s_ = page_s(use.other.minor_faults);
    const double pages_s = page_s(beside) + std::max(0.0, page_s(in_compute) - kUsualFaults * mean_.step_s);
    std::int64_t major = 0;
    double blocked_s = 0;
    for (const PartUse* part : {&use.transfer, &use.forward, &use.backward, &use.optimizer, &use.other}) {
      major += part->major_faults;
      blocked_s += of_step(part->blocked_s());
    }
    // What the system counts may be others' waiting: at most what this thread was blocked for, and only if it met a
    // disk.
    const double stall_s = major > 0 ? std::min(of_step(figures_.memory_stall_s.value_or(0)), blocked_s) : 0;
    disk_s_ = std::max(of_step(kMajorFault_s * static_cast<double>(major)), stall_s);
    const double garbage_s = of_step(figures_.garbage_s.value_or(0));
    const double lost_s = garbage_s + pages_s + disk_s_;
    if (!(lost_s > 0)) return;
    const char* const what = garbage_s > std::max(pages_s, disk_s_) ? "collecting Python's garbage"
                             : disk_s_ > pages_s                    ? "pages of memory that come back from a disk"
                                                                    : "pages of memory taken anew from the system";
    add(Resource::memory, lost_s, std::max(0.1, kGuess * (pages_s + disk_s_) / lost_s),
        fmt::format("{}, go to {}", of_a_step(lost_s, mean_), what));
  }

  void add_own_code() {
    const double garbage_s = of_step(figures_.garbage_s.value_or(0));
    const double others_s = figures_.use ? of_step(figures_.use->other.cpu_s) : 0;
    const double beside_s = std::max(0.0, others_s - pages_in_own_code_s_ - garbage_s);
    const double between_s = of_step(figures_.python_in_compute_s.value_or(0));
    add(Resource::python, beside_s + between_s, 0.1,
        between_s > beside_s
            ? fmt::format("between its operators, forward and backward spend {}", of_a_step(between_s, mean_))
            : fmt::format("the loop's own code takes {}", of_a_step(beside_s, mean_)));
  }

  void add_synchronisation() {
    const PartUses& use = *figures_.use;
    const double barrier_s = figures_.compute_threads > 1 ? kBarrier * mean_.compute_s() : 0;
    const double in_compute_s =
        of_step(use.forward.blocked_s() + use.backward.blocked_s()) - peers_delay_s() - barrier_s;
    const double beside_s = of_step(use.other.blocked_s());
    const double lost_s = std::max(0.0, in_compute_s) + beside_s - disk_s_;
    if (!figures_.run_delay_known) {
      losses_.unavailable.emplace_back(
          "cores: the kernel does not tell a thread that has no core from one that waits; both are synchronisation "
          "here");
    }
    add(Resource::synchronisation, lost_s, 0.1,
        fmt::format("the training thread waits {}, {}", of_a_step(lost_s, mean_),
                    beside_s > in_compute_s ? "between the parts of a step" : "within forward and backward"));
  }

  // Threads that compute together are done when the last one is.
  double peers_delay_s() const {
    const double wall_s =
        figures_.use ? figures_.use->forward.wall_s + figures_.use->backward.wall_s : mean_.steps * mean_.compute_s();
    return of_step(std::min(figures_.thread_delay_s.value_or(0), wall_s));
  }

  void add_cores() {
    double here_s = 0;
    if (figures_.use) {
      const PartUses& use = *figures_.use;
      for (const PartUse* part : {&use.transfer, &use.forward, &use.backward, &use.optimizer, &use.other}) {
        here_s += of_step(part->run_delay_s);
      }
    }
    if (!figures_.thread_delay_s) {
      losses_.unavailable.emplace_back("cores: how long other threads of compute had none is unknown");
    }
    const double seen_s = std::max(here_s, peers_delay_s());
    const bool is_measured = taking_is_measured_ && taken_by_loading_s_ >= seen_s;
    const double lost_s = std::max(seen_s, taken_by_loading_s_);
    add(Resource::cores, lost_s, is_measured ? 0.2 : kGuess,
        is_measured
            ? fmt::format("threads and processes that load take {}, from compute", of_a_step(lost_s, mean_))
            : fmt::format("threads of compute are ready to run and have no core for {}", of_a_step(lost_s, mean_)));
    if (is_measured && lost_s > 0) losses_.known.back().confirmed = true;
  }

  void add_ranks() {
    const std::vector<double>& busy = figures_.rank_busy_s;
    if (busy.size() < 2) return;
    const double mean_s = std::accumulate(busy.begin(), busy.end(), 0.0) / static_cast<double>(busy.size());
    const double lost_s = of_step(*std::max_element(busy.begin(), busy.end()) - mean_s);
    add(Resource::imbalance, lost_s, 0.1,
        fmt::format("the busiest of {} ranks works {}, longer than their mean", busy.size(), of_a_step(lost_s, mean_)));
  }

  void note_no_use() {
    losses_.unavailable.emplace_back(
        figures_.python_in_compute_s
            ? "the loop's own code, synchronisation, memory: nobody recorded what the training thread did in the parts "
              "of its steps"
            : "python, synchronisation, memory: nobody recorded what the training thread did in the parts of its "
              "steps");
    if (mean_.other_s <= losses_.unknown_s) return;
    losses_.unknown_s = mean_.other_s;
    losses_.unknown = fmt::format("{} of a step lies in no part", percent_text(mean_.other_s / mean_.step_s));
  }

  const TimeSplit& split_;
  const ResourceFigures& figures_;
  const StepMeans mean_;
  Losses losses_;
  double taken_by_loading_s_ = 0, pages_in_own_code_s_ = 0, disk_s_ = 0;
  bool taking_is_measured_ = false;
};

}  // namespace

StepMeans means_of(const TimeSplit& split) {
  const auto steps = static_cast<double>(split.steps);
  return {steps,
          split.total_s / steps,
          split.data_wait_s / steps,
          split.transfer_s / steps,
          split.forward_s / steps,
          split.backward_s / steps,
          split.optimizer_s / steps,
          split.other_s / steps};
}

LossEstimate loss_of(Resource resource, double lost_s, double error, std::string evidence) {
  return {.resource = resource,
          .lost_s = lost_s,
          .low_s = lost_s * std::max(0.0, 1 - error),
          .high_s = lost_s * (1 + error),
          .evidence = std::move(evidence)};
}

Losses estimate_losses(const TimeSplit& split, const ResourceFigures& figures) {
  return Estimator{split, figures}.run();
}

}  // namespace headrace::detail
