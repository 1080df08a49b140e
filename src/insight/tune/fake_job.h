// A job that lives in virtual time: its steps take what a seeded, heavy-tailed model of a busy machine says, and the
// clock moves by that. For tests.
#pragma once

#include <headrace/tune.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/fail.h"

namespace headrace {

// What a setting that is on does to the job.
struct Effect {
  double time_factor = 1;     // Of a step.
  double gradient_error = 0;  // Relative L2, in every tensor.
  double amplification = 1;   // Of all gradient errors in force: what bfloat16 makes of a difference in rounding.
  double update_error = 0;    // Relative L2.
  double loss_error = 0;      // Relative, of a batch's loss.
  bool other_bits = false;
  bool other_draws = false;      // Its batches are others of the same distribution.
  double batch_shift = 0;        // On every value of its batches' gradients, whose deviation from batch to batch is 1.
  double throw_probability = 0;  // Each step.
  bool out_of_memory = false;
  bool configure_throws = false;
  bool cancels = false;
};

struct Machine {
  double step_s = 0.04;
  double noise = 0.04;               // Of a step: Student's t with 3 degrees of freedom, scaled to this deviation.
  double burst_probability = 0.005;  // A step begins one; it lasts 2 to 6 steps of 40 ms and costs 20 to 50 %.
  double drift = 0;                  // The machine is slower by this share at the end of 90 s.
  double switch_s = 0.002;
};

inline constexpr double kStart_s = 1000;

class FakeJob : public Job {
 public:
  FakeJob(Machine machine, std::map<std::string, Effect> effects, std::uint64_t seed)
      : machine_(machine), effects_(std::move(effects)), random_(seed) {}

  double now_s() const { return now_s_; }
  void wait(double seconds) { now_s_ += seconds; }

  void snapshot() override { ++snapshots; }
  void restore() override {
    now_s_ += machine_.switch_s / 2;
    position = 0;
    ++restores;
  }
  void configure(const Settings& wanted) override {
    now_s_ += machine_.switch_s / 2;
    for (const auto& [key, value] : wanted) {
      if (effects_.at(key).configure_throws) fail(ErrorCode::unsupported, "fake: {} cannot be applied", key);
    }
    settings = wanted;
    configured.push_back(wanted);
  }
  std::vector<double> run(std::int64_t steps) override {
    std::vector<double> times;
    for (std::int64_t step = 0; step < steps; ++step) times.push_back(one_step());
    position += steps;
    return times;
  }
  SplitRun run_split(std::int64_t steps) override {
    SplitRun block{run(steps), std::nullopt};
    std::vector<TimeSplit::Parts> parts;
    for (const double time_s : block.step_s) parts.push_back({0, 0, 0.3 * time_s, 0.5 * time_s, 0.15 * time_s});
    block.split = sum_steps(block.step_s, parts);
    split_blocks.emplace_back(settings, block.step_s);
    return block;
  }
  Fingerprint fingerprint(std::int64_t batch) override {
    now_s_ += machine_.step_s;
    Fingerprint print;
    print.loss = exact_loss(batch) * (1 + own_loss_error + total(&Effect::loss_error));
    std::mt19937_64 values(7 + batch);
    std::normal_distribution<double> normal;
    double error = own_gradient_error + total(&Effect::gradient_error);
    for (const auto& [key, value] : settings) error *= effects_.at(key).amplification;
    for (const char* name : {"conv.weight", "conv.bias", "fc.weight"}) {
      Fingerprint::Gradient gradient{name, {}};
      for (int i = 0; i < 200; ++i) {
        const double value = normal(values), other = normal(values);
        gradient.values.push_back(static_cast<float>(value + error * other));
      }
      print.gradients.push_back(gradient);
    }
    return print;
  }
  Fingerprint fingerprint_as_loaded(std::int64_t batch) override {
    ++batches_loaded;
    bool draws = false;
    for (const auto& [key, value] : settings) draws = draws || effects_.at(key).other_draws;
    Fingerprint print = fingerprint(batch + (draws ? 1000 : 0));
    for (auto& gradient : print.gradients) {
      for (float& value : gradient.values) value += static_cast<float>(total(&Effect::batch_shift));
    }
    return print;
  }
  ExactResult exact_fingerprint(std::int64_t batch) override {
    if (!has_exact) return {std::nullopt, "the fake has no float64 form"};
    ++exact_batches;
    now_s_ += exact_cost * machine_.step_s;
    if (exact_throws) throw std::runtime_error("fake: no kernel for double");
    ExactFingerprint print;
    print.loss = exact_loss(batch);
    std::mt19937_64 values(7 + batch);
    std::normal_distribution<double> normal;
    for (const char* name : {"conv.weight", "conv.bias", "fc.weight"}) {
      ExactFingerprint::Gradient gradient{name, {}};
      for (int i = 0; i < 200; ++i) {
        gradient.values.push_back(normal(values));
        normal(values);  // The direction of the errors.
      }
      print.gradients.push_back(gradient);
    }
    return {print, {}};
  }
  std::uint64_t state_hash() override {
    std::uint64_t hash = 17 + static_cast<std::uint64_t>(position);
    for (const auto& [key, value] : settings) hash += effects_.at(key).other_bits ? 1 : 0;
    if (repeats_itself) return hash;
    return hash + ++hashes_;
  }
  double update_difference(const Settings& a, const Settings& b) override {
    double difference = 0;
    for (const auto& [key, value] : b) difference += a.count(key) == 0 ? effects_.at(key).update_error : 0;
    return difference;
  }
  std::int64_t samples_per_step() const override { return 128; }

  Settings settings;
  std::vector<Settings> configured;
  std::vector<std::pair<Settings, std::vector<double>>> split_blocks;  // Step times of each run_split().
  std::int64_t position = 0, snapshots = 0, restores = 0, steps_run = 0;
  bool repeats_itself = true;
  bool has_exact = false, exact_throws = false;
  double exact_cost = 2;                              // In steps.
  double own_loss_error = 0, own_gradient_error = 0;  // Of every fingerprint, relative, against the exact one.
  std::int64_t exact_batches = 0, batches_loaded = 0;

 private:
  static double exact_loss(std::int64_t batch) { return 2.3 + 0.01 * static_cast<double>(batch); }
  double total(double Effect::*part) const {
    double sum = 0;
    for (const auto& [key, value] : settings) sum += effects_.at(key).*part;
    return sum;
  }
  double one_step() {
    double time_s = machine_.step_s * (1 + machine_.drift * (now_s_ - kStart_s) / 90);
    std::uniform_real_distribution<double> uniform;
    for (const auto& [key, value] : settings) {
      const Effect& effect = effects_.at(key);
      if (effect.out_of_memory) fail(ErrorCode::out_of_memory, "fake: {} does not fit", key);
      if (effect.cancels) fail(ErrorCode::cancelled, "fake: interrupted");
      if (uniform(random_) < effect.throw_probability) throw std::runtime_error("fake: " + key + " broke\nat line 1");
      time_s *= effect.time_factor;
    }
    if (now_s_ > burst_end_s_ && uniform(random_) < machine_.burst_probability) {
      burst_end_s_ = now_s_ + std::uniform_real_distribution(0.08, 0.24)(random_);
      burst_factor_ = std::uniform_real_distribution(1.2, 1.5)(random_);
    }
    if (now_s_ < burst_end_s_) time_s *= burst_factor_;
    time_s *= std::max(0.5, 1 + machine_.noise * std::student_t_distribution<double>(3)(random_) / std::sqrt(3.0));
    now_s_ += time_s;
    ++steps_run;
    return time_s;
  }

  Machine machine_;
  std::map<std::string, Effect> effects_;
  std::mt19937_64 random_;
  double now_s_ = kStart_s;
  double burst_end_s_ = 0, burst_factor_ = 1;
  std::uint64_t hashes_ = 0;
};

}  // namespace headrace
