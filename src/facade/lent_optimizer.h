// A caller's optimizer in a trainer.
#pragma once

#include <headrace/optimizer.h>
#include <headrace/trainer.h>

#include <utility>

namespace headrace::facade {

// The optimizer is the trainer's until the end, also by exception. Ends before the trainer, which makes no step then.
class LentOptimizer {
 public:
  LentOptimizer(Optimizer& optimizer, Trainer& trainer) : optimizer_(optimizer), trainer_(trainer) {}
  ~LentOptimizer() { optimizer_ = std::move(trainer_.optimizer()); }
  LentOptimizer(const LentOptimizer&) = delete;
  LentOptimizer& operator=(const LentOptimizer&) = delete;

 private:
  Optimizer& optimizer_;
  Trainer& trainer_;
};

}  // namespace headrace::facade
