// A library for tune.strategies: a strategy that makes each step of a recipe wait.
#include <headrace/strategy.h>
#include <headrace/trainer.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

namespace hr = headrace;

namespace {

class SlowSteps final : public hr::Strategy {
 public:
  std::string_view name() const noexcept override { return "slow-steps"; }
  std::string sentence() const override { return "Waits before each update."; }
  hr::NumericClass numerics() const noexcept override { return hr::NumericClass::bit_equal; }
  std::string why_not(const hr::StrategyContext& context) const override {
    return context.trainer == nullptr ? "it is for recipes" : "";
  }
  void apply(const hr::StrategyContext& context) override {
    before_ = std::exchange(context.trainer->on_part, [this](hr::StepPart part) {
      if (before_) before_(part);
      if (part == hr::StepPart::optimizer) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
  }
  void undo(const hr::StrategyContext& context) override { context.trainer->on_part = std::move(before_); }

 private:
  std::function<void(hr::StepPart)> before_;
};

}  // namespace

extern "C" void headrace_register_strategies() {
  hr::register_strategy(std::make_shared<SlowSteps>());
}
