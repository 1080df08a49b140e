// Steps on a device by the form of their batch: its tensors moved there, and its step captured once and run again.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "torch/device/accelerator.h"

namespace headrace {

// What a captured step holds by address or by value: it is captured again where one of these has changed.
class CaptureState {
 public:
  CaptureState() = default;
  // `settings`: of the trainer, whatever else is baked in.
  CaptureState(const ModelState& model, const Optimizer& optimizer, std::uint64_t settings);
  bool is_of(const ModelState& model, const Optimizer& optimizer, std::uint64_t settings) const;

 private:
  struct Seen {
    const void* memory;
    bool is_trained;
    bool operator==(const Seen&) const = default;
  };
  static Seen seen_of(const at::Tensor& tensor);

  std::vector<Seen> tensors_;  // Parameters and buffers, in their order.
  std::vector<OptimizerOptions> options_;
  std::uint64_t optimizer_ = 0, settings_ = 0;
};

// Batches of one structure whose tensors have the same shapes and dtypes. Not thread-safe.
class StepForm {
 public:
  // Refers to `accelerator`, which may be nullptr.
  StepForm(const std::vector<at::Tensor>& tensors, std::string structure, c10::Device device, Accelerator* accelerator);

  bool is_of(const std::vector<at::Tensor>& tensors, const std::string& structure) const;
  // On the device, in new memory where they are elsewhere. Waits for nothing with an accelerator.
  std::vector<at::Tensor> moved(const std::vector<at::Tensor>& tensors);

  std::int64_t steps = 0;          // Made operator by operator since the last capture was forgotten.
  std::int64_t captures = 0;       // Made in all...
  std::int64_t replays = 0;        // ...and steps replayed since the last.
  std::string why_not_captured{};  // None is tried again.

  bool is_captured() const { return work_ != nullptr; }
  bool was_captured_with(const ModelState& model, const Optimizer& optimizer, std::uint64_t settings) const {
    return captured_with_.is_of(model, optimizer, settings);
  }
  void forget_capture();
  // Captures `work`, which gets the tensors of a batch and returns figures; `reads` is what it reads beside these and
  // the model, and is kept until forget_capture(). What it throws, or what cannot be captured, goes on, and nothing is
  // captured then.
  void capture(const std::vector<at::Tensor>& tensors, CaptureState state, std::vector<at::Tensor> reads,
               const std::function<at::Tensor(const std::vector<at::Tensor>&)>& work);
  // Runs what was captured on these tensors, and calls `copied` when their copies are queued and the rest is not. Its
  // figures are a row of a block in which they stay as they are. Waits for nothing.
  struct Figures {
    at::Tensor block;  // (rows, figures)
    std::int64_t row;
  };
  Figures replay(const std::vector<at::Tensor>& tensors, const std::function<void()>& copied);
  std::int64_t pool_bytes() const { return work_ == nullptr ? 0 : work_->pool_bytes(); }

 private:
  struct Part {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
  };

  std::vector<Part> parts_;
  std::string structure_;  // MovableBatch's.
  c10::Device device_;
  Accelerator* accelerator_;
  std::unique_ptr<BatchTransfer> transfer_;
  CaptureState captured_with_;
  std::vector<at::Tensor> reads_;
  std::vector<at::Tensor> inputs_;
  at::Tensor figures_;
  at::Tensor block_;
  std::int64_t rows_used_ = 0;
  std::unique_ptr<CapturedWork> work_;  // Ends before what it works on.
};

}  // namespace headrace
