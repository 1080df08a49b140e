// A training loop made of a user's own Python objects as the tuner's Job.
//
// The loop is the one that most people write: batch, zero_grad, forward, backward, step, all of them the user's. What
// the objects are, how their state is saved and how a setting is applied to them, is told by `subject`, a
// headrace._subject.Subject, whose `step` is the step, in the tuner's loop and in the user's; timing, order, checks and
// comparisons are here. Of tensors nothing is known here but the numbers of flat ones, which `subject` makes of them.
// Every call may be made without the GIL; it is taken while Python runs.
#pragma once

#include <headrace/tune.h>
#include <nanobind/nanobind.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "insight/measure/measure.h"
#include "insight/measure/part_use_counter.h"
#include "python/core/error_codes.h"
#include "python/core/errors.h"
#include "python/core/loop_memory.h"

namespace headrace::python {

class PythonJob final : public MeasurableJob {
 public:
  explicit PythonJob(nanobind::object subject);
  ~PythonJob() override;
  PythonJob(const PythonJob&) = delete;
  PythonJob& operator=(const PythonJob&) = delete;

  // One forward and backward on the first batch, whose effects are undone. Error{invalid_argument} when there is no
  // batch, or the loss is not one number that depends on a parameter; Error{numerics} when it is not finite. What
  // `subject` raises of gradients that are not dense real numbers passes.
  void check();

  // The state to go back to is the one that `subject` was made with: measuring has moved the objects since then.
  void snapshot() override;
  void restore() override;
  void configure(const Settings& settings) override;
  // Error{cancelled} when Python was interrupted (Ctrl-C, SystemExit): rethrow_interrupt() then goes on with that.
  //
  // What an epoch costs at its beginning (a permutation, worker processes) is spread over its batches, and
  // what a setting costs once in a run (compiling) over the run's steps: each step's seconds hold its share.
  std::vector<double> run(std::int64_t steps) override;
  Fingerprint fingerprint(std::int64_t batch) override;
  // Where an epoch is shorter, the next one begins as it would in the loop.
  Fingerprint fingerprint_as_loaded(std::int64_t batch) override;
  // By a copy of the module in float64. What the user's code cannot do with one is the reason why there is none.
  ExactResult exact_fingerprint(std::int64_t batch) override;
  std::uint64_t state_hash() override;
  double update_difference(const Settings& a, const Settings& b) override;
  std::int64_t samples_per_step() const override { return samples_; }

  void set_free_data(bool free_data) override;
  // What works for the user's loader is not ours to know, nor to switch.
  std::optional<LoaderWork> loader_work() const override { return std::nullopt; }
  void set_loads_aside(bool) override {}

  // The epoch at hand moves on meanwhile: a second one beside it would have worker processes of its own.
  bool set_idle_compute(double seconds) override;
  // Not of steps that the engine makes: part_uses() is nullopt then.
  void set_counts_use(bool counts) override;
  std::optional<PartUses> part_uses(std::int64_t steps) const override;
  bool knows_run_delay() const override { return !use_ || use_->knows_run_delay(); }
  // What `subject` tells by loading_totals(), garbage_s(), read_times(), step_work() and multiply(n), where it has them
  // (headrace._diagnose_loop.DiagnosedLoop does); else unavailable.
  std::optional<LoadingTotals> loading_totals() const override;
  std::optional<double> garbage_s() const override;
  std::optional<ReadTimes> read_times() override;
  StepWork step_work() override;
  std::optional<MachinePeaks> peaks() override;

  void rethrow_interrupt() const;
  // What the process and the loop's objects held so far.
  MemoryTimeline memory() { return memory_.timeline(); }

 protected:
  std::vector<double> moved_data_wait() const override { return moved_s_; }

 private:
  struct Wait {
    double time_s;
    bool begins_pass;
  };
  // Runs `work` under the GIL; an interrupt becomes Error{cancelled}, and what tells of too little memory
  // Error{out_of_memory}. Other Python exceptions pass.
  template <class Work>
  auto in_python(Work&& work);
  // Ends the epoch at hand and runs `work`, which may leave any state: afterwards, also after an exception, it is the
  // one that `subject` was made with.
  template <class Work>
  auto then_restored(Work&& work);
  nanobind::object next_batch();
  nanobind::object gradients(const nanobind::object& batch);  // Left in the parameters; returns the loss.
  double one_step(bool is_last);                              // Of a block. Seconds of the host.
  double idle_step(std::int64_t begin_ns);                    // The batch of which was asked for then.
  // A step was made, of this loss; none: an idle one. Error{numerics} where that is known not to be finite.
  void note_step(const nanobind::object& loss, double time_s, bool is_last);
  bool is_on_device() const { return !block_times_.is_none(); }
  std::vector<double> device_seconds();  // Of the block's steps; and limits its waits to these.
  bool tells(const char* method) const;  // Under the GIL.
  // Takes out of the steps what beginning an epoch costs, and returns what each step owes of it.
  double spread_pass_starts(std::vector<double>& seconds);
  nanobind::object batch_for_checks(std::int64_t index);
  nanobind::object batch_as_loaded(std::int64_t index);
  // Of an epoch that this method of the subject begins, until there are `count`.
  void take_batches(const char* method, std::int64_t count, std::vector<nanobind::object>& batches);
  Fingerprint fingerprint_of(const nanobind::object& batch);

  nanobind::object subject_;
  nanobind::object step_;  // subject_.step, a headrace._step.WholeStep.
  // subject_.block_times, a headrace._block_times.BlockTimes, for objects on a device; none: on the CPU.
  nanobind::object block_times_;
  nanobind::object pass_;    // The iterator over the data at hand; none: the next step begins one.
  nanobind::object cached_;  // The batch of free data; none while it is off.
  std::vector<nanobind::object> batches_for_checks_;
  std::vector<nanobind::object> batches_as_loaded_;  // Under the settings in force, of epochs from the first one on.
  std::vector<Wait> waits_;                          // For data, of the steps of the last run().
  std::vector<double> moved_s_;  // Of these steps: their shares of epochs' beginnings, less a beginning itself.
  double pass_start_s_ = 0;      // What the newest epoch cost to begin, beyond what any batch costs.
  std::int64_t samples_ = 1;
  double idle_s_ = 0;                    // In the place of a step's compute; 0: it computes.
  std::shared_ptr<PartUseCounter> use_;  // With what tells it of parts, for a call's length. Null: nobody counts.
  std::exception_ptr interrupt_;
  LoopMemory memory_;
  bool counts_batches_;  // A headrace.Loader counts its own.
};

template <class Work>
auto PythonJob::in_python(Work&& work) {
  const nanobind::gil_scoped_acquire held;
  try {
    return work();
  } catch (nanobind::python_error& raised) {
    if (!raised.matches(PyExc_Exception)) {
      interrupt_ = std::make_exception_ptr(RaisedInPython(std::move(raised)));
      fail(ErrorCode::cancelled, "python: interrupted");
    }
    const ErrorCode code = code_of(raised.value());
    if (code == ErrorCode::out_of_memory) fail(code, "python: {}", sentence_of(raised));
    throw RaisedInPython(std::move(raised));
  }
}

}  // namespace headrace::python
