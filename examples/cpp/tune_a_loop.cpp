// Gives a training loop of one's own to the tuner: which of three changes makes it faster, and leaves its numbers as
// they are? A loop is a Job: it can be put back to a state, set up in another way, and measured. The tuner knows
// nothing else of it. One of the changes is a strategy, which any Job can try.
//
//   tune_a_loop idx:/usr/share/datasets/fashion-mnist 20
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <headrace/strategy_switch.h>
#include <headrace/trainer.h>
#include <headrace/tune.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <utility>

namespace hr = headrace;

namespace {

using Tensors = std::vector<at::Tensor>;

class PlainKernels final : public hr::Strategy {
 public:
  std::string_view name() const noexcept override { return "plain-kernels"; }
  std::string sentence() const override { return "matrix products by torch's own kernels instead of oneDNN's"; }
  std::string why_not(const hr::StrategyContext& /*context*/) const override {
    return at::globalContext().userEnabledMkldnn() ? "" : "oneDNN is off already";
  }
  void apply(const hr::StrategyContext& /*context*/) override { at::globalContext().setUserEnabledMkldnn(false); }
  void undo(const hr::StrategyContext& /*context*/) override { at::globalContext().setUserEnabledMkldnn(true); }
};

class Loop final : public hr::Job {
 public:
  Loop(hr::Loader& loader, hr::Trainer& trainer) : loader_(loader), trainer_(trainer) {
    hr::Epoch epoch = loader_.epoch(0);
    while (checked_.size() < 5) checked_.push_back(epoch.next().value());  // What numerics are compared on.
  }

  void snapshot() override {
    saved_ = copies();
    progress_ = trainer_.progress();
  }
  void restore() override {
    const at::NoGradGuard no_grad;
    const Tensors now = tensors();
    for (std::size_t i = 0; i < now.size(); ++i) now[i].copy_(saved_[i]);
    trainer_.optimizer().zero_gradients();
    trainer_.progress() = progress_;
    epoch_.reset();
  }
  void configure(const hr::Settings& all) override {
    const hr::Settings settings = strategies_.set(all, context_);  // Those that are no strategy's.
    hr::OptimizerOptions options = trainer_.optimizer().options();
    options.fused = settings.contains("optimizer.fused") ? hr::Switch::on : hr::Switch::off;
    trainer_.optimizer().set_options(options);
    loader_.set_num_workers(settings.contains("data.num_workers") ? 2 : 1);
  }
  // Those of this loop, and the strategies that apply to it; the others' reasons are left out.
  std::vector<hr::Candidate> with_strategies(std::vector<hr::Candidate> candidates) const {
    std::vector<hr::Report::NotTried> not_tried;
    for (hr::Candidate& own : strategies_.candidates(context_, not_tried)) candidates.push_back(std::move(own));
    return candidates;
  }
  std::vector<double> run(std::int64_t steps) override {
    std::vector<double> seconds;
    while (static_cast<std::int64_t>(seconds.size()) < steps) {
      const auto begin = std::chrono::steady_clock::now();
      if (!epoch_) epoch_.emplace(loader_.epoch(0));
      if (const auto batch = epoch_->next()) {
        trainer_.step(*batch);
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      } else {
        epoch_.reset();
      }
    }
    return seconds;
  }

  // ---- For the check that a change computes the same ----
  hr::Fingerprint fingerprint(std::int64_t index) override {
    hr::Fingerprint print;
    print.loss = gradients_of(index);
    for (const auto& [name, parameter] : trainer_.model().parameters) {
      const at::Tensor gradient = parameter.grad().contiguous();
      const float* values = gradient.const_data_ptr<float>();
      print.gradients.push_back({name, {values, values + gradient.numel()}});
    }
    trainer_.optimizer().zero_gradients();
    return print;
  }
  double update_difference(const hr::Settings& a, const hr::Settings& b) override {
    const Tensors first = updated(a), second = updated(b);
    double largest = 0;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const double size = first[i].norm().item<double>(), difference = (first[i] - second[i]).norm().item<double>();
      if (size > 0) largest = std::max(largest, difference / size);
    }
    return largest;
  }
  std::uint64_t state_hash() override {  // FNV-1a.
    std::uint64_t hash = 14695981039346656037U;
    for (const auto& [name, parameter] : trainer_.model().parameters) {
      const at::Tensor whole = parameter.contiguous();
      const auto* bytes = static_cast<const unsigned char*>(whole.const_data_ptr());
      for (std::size_t i = 0; i < whole.nbytes(); ++i) hash = (hash ^ bytes[i]) * 1099511628211U;
    }
    return hash;
  }
  std::int64_t samples_per_step() const override { return checked_[0].size(); }

 private:
  Tensors tensors() {  // Parameters and optimizer state, shared; this network has no buffers.
    Tensors all;
    for (const auto& [name, tensor] : trainer_.model().parameters) all.push_back(tensor);
    for (const auto& [name, tensor] : trainer_.optimizer().state()) all.push_back(tensor);
    return all;
  }
  Tensors copies() {
    Tensors all = tensors();
    for (at::Tensor& tensor : all) tensor = tensor.detach().clone();
    return all;
  }
  double gradients_of(std::int64_t index) {
    const auto& batch = checked_[static_cast<std::size_t>(index) % checked_.size()];
    return trainer_.forward_backward(trainer_.transfer(batch)).loss.item<double>();
  }
  Tensors updated(const hr::Settings& settings) {
    restore();
    configure({});
    gradients_of(0);  // The same for both.
    configure(settings);
    trainer_.optimizer().step(1e-3);
    Tensors after = copies();
    restore();
    return after;
  }

  hr::Loader& loader_;
  hr::Trainer& trainer_;
  hr::StrategySwitch strategies_;
  hr::StrategyContext context_;
  std::vector<hr::Batch> checked_;
  std::optional<hr::Epoch> epoch_;
  Tensors saved_;
  hr::Progress progress_;
};

// A linear layer of 10 classes over the pixels, in plain ATen.
hr::Trainer make_trainer(std::int64_t pixels) {
  at::manual_seed(1);
  const at::Tensor weight = at::randn({10, pixels}).mul_(0.01).requires_grad_(),
                   bias = at::zeros({10}).requires_grad_();
  const hr::ModelState model{{{"weight", weight}, {"bias", bias}}, {}, [](bool) {}};
  const auto forward = [weight, bias](const hr::TensorBatch& batch) -> hr::Output {
    return {at::cross_entropy_loss(at::linear(batch["image"].flatten(1), weight, bias), batch["labels"]), {}};
  };
  return {model, hr::Optimizer{model.parameters, {.lr = 1e-3, .fused = hr::Switch::off}}, forward, {}, {}, 1000};
}

std::vector<hr::Candidate> candidates() {
  return {{.name = "fused optimizer",
           .sentence = "one kernel for all parameters",
           .changes = {{"optimizer.fused", "true"}},
           .numerics = hr::NumericClass::rounding,
           .resource = "compute"},
          {.name = "2 workers",
           .sentence = "two threads load",
           .changes = {{"data.num_workers", "2"}},
           .numerics = hr::NumericClass::bit_equal,
           .resource = "data",
           .divides_cores = true}};
}

}  // namespace

int main(int argc, char** argv) try {
  const char* data = argc > 1 ? argv[1] : "idx:/usr/share/datasets/fashion-mnist";
  hr::Loader loader{hr::open_source(data, hr::Split::train), {.batch_size = 64}, /*seed=*/1, /*training=*/true};
  hr::Trainer trainer = make_trainer(loader.channels() * loader.height() * loader.width());
  hr::register_strategy(std::make_shared<PlainKernels>());
  Loop loop{loader, trainer};

  const hr::Ledger ledger =
      hr::tune(loop, loop.with_strategies(candidates()), {.budget_s = argc > 2 ? std::atof(argv[2]) : 20}, /*seed=*/1);
  for (const hr::Trial& trial : ledger.trials) {
    std::printf("%s: %s: %s\n", trial.name.c_str(), hr::to_string(trial.verdict), trial.sentence.c_str());
  }
  if (ledger.speedup_pairs > 0) std::printf("%.2f times as fast\n", ledger.speedup.median);
} catch (const std::exception& error) {
  std::fprintf(stderr, "tune_a_loop: %s\n", error.what());
  return 1;
}
