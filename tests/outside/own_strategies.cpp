// Strategies of a user's own, tried on a job of the user's own, whose steps take what is written here.
#include <headrace/strategy_switch.h>
#include <headrace/tune.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hr = headrace;

namespace {

struct Context final : hr::StrategyContext {
  double step_s = 0.01;
};

int applied = 0, undone = 0;

class Pace final : public hr::Strategy {
 public:
  Pace(std::string name, double factor) : name_(std::move(name)), factor_(factor) {}

  std::string_view name() const noexcept override { return name_; }
  std::string sentence() const override { return "Steps at another pace."; }
  hr::NumericClass numerics() const noexcept override { return hr::NumericClass::bit_equal; }
  void apply(const hr::StrategyContext& context) override {
    ++applied;
    step_of(context) *= factor_;
    if (factor_ == 1) throw std::runtime_error("there is no other pace");
  }
  void undo(const hr::StrategyContext& context) override {
    ++undone;
    step_of(context) /= factor_;
  }

 private:
  // What is handed over is a context of ours.
  static double& step_of(const hr::StrategyContext& context) {
    return const_cast<Context&>(dynamic_cast<const Context&>(context)).step_s;
  }

  std::string name_;
  double factor_;
};

class Loop final : public hr::Job {
 public:
  void snapshot() override {}
  void restore() override {}
  void configure(const hr::Settings& settings) override { strategies.set(settings, context); }
  std::vector<double> run(std::int64_t steps) override {
    std::normal_distribution<double> noise(0, 0.02);
    std::vector<double> seconds;
    for (std::int64_t i = 0; i < steps; ++i) seconds.push_back(context.step_s * std::exp(noise(random_)));
    return seconds;
  }
  hr::Fingerprint fingerprint(std::int64_t /*batch*/) override { return {1, {{"weight", {1, 2, 3}}}}; }
  std::uint64_t state_hash() override { return 7; }
  double update_difference(const hr::Settings& /*a*/, const hr::Settings& /*b*/) override { return 0; }
  std::int64_t samples_per_step() const override { return 1; }

  Context context;
  hr::StrategySwitch strategies;

 private:
  std::mt19937_64 random_{7};
};

}  // namespace

int main() try {
  const std::pair<const char*, double> paces[] = {{"longer", 1.5}, {"shorter", 0.5}, {"broken", 1}};
  for (const auto& [name, factor] : paces) hr::register_strategy(std::make_shared<Pace>(name, factor));
  for (const auto& strategy : hr::registered_strategies()) {
    std::printf("registered %s: %s\n", std::string(strategy->name()).c_str(), strategy->sentence().c_str());
  }
  Loop loop;
  std::vector<hr::Report::NotTried> not_tried;
  const hr::Ledger ledger = hr::tune(loop, loop.strategies.candidates(loop.context, not_tried), {}, /*seed=*/1);
  for (const hr::Trial& trial : ledger.trials) {
    std::printf("%s %s: %s\n", hr::to_string(trial.verdict), trial.name.c_str(), trial.sentence.c_str());
  }
  std::printf("%d are in force\n", applied - undone);
  loop.configure({});
  std::printf("%d are in force at the end\n", applied - undone);
} catch (const std::exception& error) {
  std::fprintf(stderr, "own_strategies: %s\n", error.what());
  return 1;
}
