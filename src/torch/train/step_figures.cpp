#include "torch/train/step_figures.h"

#include <ATen/ops/cat.h>
#include <c10/core/GradMode.h>

#include <utility>

namespace headrace {
namespace {

// Where there is no accelerator.
class WaitedFor : public HostCopy {
 public:
  explicit WaitedFor(const at::Tensor& values) : values_(values.cpu()) {}
  const at::Tensor& values() override { return values_; }

 private:
  at::Tensor values_;
};

}  // namespace

void StepFigures::drop_to(std::size_t waiting) {
  for (; waiting_.size() > waiting; waiting_.pop_back()) losses_ -= waiting_.back().has_loss() ? 1 : 0;
}

void StepFigures::clear() {
  waiting_.clear();
  losses_ = 0;
  sent_.clear();
  copy_.reset();
}

void StepFigures::send() {
  if (waiting_.empty()) return;
  c10::AutoGradMode no_graph(false);
  std::vector<at::Tensor> values;
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    const StepFigure& figure = waiting_[i];
    if (figure.row != StepFigure::kWhole) {
      std::int64_t end = figure.row + 1;
      for (; i + 1 < waiting_.size() && waiting_[i + 1].values.is_same(figure.values) && waiting_[i + 1].row == end;
           ++i) {
        ++end;
      }
      values.push_back(figure.values.slice(0, figure.row, end).reshape(-1));
      continue;
    }
    const bool is_plain = figure.values.dim() == 1 && figure.values.scalar_type() == at::kFloat;
    values.push_back(is_plain ? figure.values : figure.values.detach().reshape(-1).to(at::kFloat));
  }
  const at::Tensor all = at::cat(values).to(at::kDouble);
  copy_ = accelerator_ != nullptr ? accelerator_->copy_to_host(all) : std::make_unique<WaitedFor>(all);
  sent_ = std::exchange(waiting_, {});
  losses_ = 0;
}

}  // namespace headrace
