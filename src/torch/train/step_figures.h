// What steps leave on their device to be looked at later, so that no step waits for it: losses, and what updates found.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "torch/device/accelerator.h"

namespace headrace {

struct StepFigure {
  enum class Kind { loss, largest_gradient, update, step };
  // Scalar: a loss or the largest absolute value of the gradients. Of an update DeviceClip::figures, of a step its loss
  // before these.
  at::Tensor values;
  std::int64_t epoch = 0, batch = 0, samples = 0;
  Kind kind = Kind::loss;
  // Of (rows, figures) values, the row of this one: those of steps that follow each other are read together.
  static constexpr std::int64_t kWhole = -1;
  std::int64_t row = kWhole;

  std::int64_t count() const { return row == kWhole ? values.numel() : values.size(1); }
  bool has_loss() const { return kind == Kind::loss || kind == Kind::step; }
};

struct StepFigureRead {
  StepFigure of;
  const double* values;  // As many as it has.
};

// In the order of the steps. Not thread-safe.
class StepFigures {
 public:
  // `accelerator`: that of the device, or nullptr, and then all are read by waiting for them. Full with that many
  // losses, at least 2, whatever else waits beside them.
  explicit StepFigures(Accelerator* accelerator, std::int64_t losses_most = 50)
      : accelerator_(accelerator), losses_most_(losses_most) {}

  void add(StepFigure figure) {
    losses_ += figure.has_loss() ? 1 : 0;
    waiting_.push_back(std::move(figure));
  }
  bool is_full() const { return losses_ >= losses_most_; }
  bool has_room_for_one() const { return losses_ + 1 < losses_most_; }
  std::size_t waiting() const { return waiting_.size(); }
  void drop_to(std::size_t waiting);
  void clear();

  // Calls `take(StepFigureRead)` with those that were sent to the host before, by now most often there, and sends those
  // that wait. What it throws goes on, and then there are none left.
  template <class Take>
  void exchange(const Take& take) {
    std::vector<StepFigure> figures = std::exchange(sent_, {});
    const std::unique_ptr<HostCopy> copy = std::exchange(copy_, nullptr);
    std::exception_ptr failed;  // As where memory ran out; what was sent before is told all the same.
    try {
      send();
    } catch (...) {
      failed = std::current_exception();
    }
    if (copy != nullptr) tell(figures, copy->values(), take);
    if (failed != nullptr) std::rethrow_exception(failed);
  }
  // The same with all there are; waits for the device.
  template <class Take>
  void read_all(const Take& take) {
    if (sent_.empty() && waiting_.empty()) return;
    exchange(take);
    exchange(take);
  }

 private:
  void send();
  template <class Take>
  void tell(const std::vector<StepFigure>& figures, const at::Tensor& values, const Take& take) {
    const double* next = values.const_data_ptr<double>();
    try {
      for (const StepFigure& figure : figures) {
        take(StepFigureRead{figure, next});
        next += figure.count();
      }
    } catch (...) {
      clear();
      throw;
    }
  }

  Accelerator* accelerator_;
  std::int64_t losses_most_;
  std::int64_t losses_ = 0;  // Among those that wait.
  std::vector<StepFigure> waiting_, sent_;
  std::unique_ptr<HostCopy> copy_;  // Of those sent.
};

}  // namespace headrace
