// What a checkpoint costs: how long training stands still while the state of ResNet-18 (11.7 million parameters, 47 MB)
// is saved, with SGD's momentum or AdamW's two averages beside it; the same with a CheckpointWriter that writes beside
// training (the first of its saves, the highest figure, allocates its copy), where at most 0.3 of it is wanted; and how
// much of it the bytes alone would take.
//   checkpoint_bench [folder [times]]
#include <ATen/ops/ones.h>
#include <fmt/format.h>
#include <headrace/checkpoint_writer.h>
#include <headrace/error.h>
#include <headrace/trainer.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/files.h"
#include "torch/tensor/compute.h"
#include "torch/tensor/translate.h"
#include "torch/train/checkpoint.h"

namespace {

using namespace headrace;
namespace fs = std::filesystem;

// The shapes of torchvision's resnet18, biases and batch norm included.
std::vector<std::vector<std::int64_t>> resnet18_shapes() {
  std::vector<std::vector<std::int64_t>> shapes{{64, 3, 7, 7}, {64}, {64}};
  std::int64_t from = 64;
  for (const std::int64_t to : {64, 128, 256, 512}) {
    for (const std::int64_t in : {from, to, to, to}) shapes.insert(shapes.end(), {{to, in, 3, 3}, {to}, {to}});
    if (from != to) shapes.insert(shapes.end(), {{to, from, 1, 1}, {to}, {to}});
    from = to;
  }
  shapes.insert(shapes.end(), {{1000, 512}, {1000}});
  return shapes;
}

struct Spread {
  double low, median, high;
};

Spread spread_of(std::vector<double> milliseconds) {
  std::sort(milliseconds.begin(), milliseconds.end());
  return {milliseconds.front(), milliseconds[milliseconds.size() / 2], milliseconds.back()};
}

std::string text(const Spread& spread) {
  return fmt::format("{:4.0f} ms [{:.0f}, {:.0f}]", spread.median, spread.low, spread.high);
}

template <class Body>
double milliseconds_of(const Body& body) {
  const std::int64_t begin_ns = monotonic_ns();
  body();
  return seconds_since(begin_ns) * 1e3;
}

void measure(const fs::path& folder, const std::string& title, const OptimizerOptions& options, int times) {
  ModelState model;
  for (const auto& shape : resnet18_shapes()) {
    const std::string name = fmt::format("layer{}", model.parameters.size());
    model.parameters.emplace_back(name, at::ones(shape).requires_grad_());
  }
  model.set_training = [](bool) {};
  Trainer trainer(model, Optimizer(model.parameters, options), {}, {}, {}, 1);
  RunState run;
  run.model = "resnet18";
  const std::string bytes = read_file(save_checkpoint(folder, trainer, run, 2), 1 << 30);
  CheckpointWriter writer(/*beside=*/true);
  std::vector<double> waiting, beside, plain;
  for (int i = 0; i < times; ++i) {
    ++trainer.progress().optimizer_steps;
    waiting.push_back(milliseconds_of([&] { save_checkpoint(folder, trainer, run, 2); }));
    ++trainer.progress().optimizer_steps;
    beside.push_back(milliseconds_of([&] { writer.save(folder, trainer, run, 2); }));
    writer.finish();
    plain.push_back(milliseconds_of([&] { write_file(folder / "bytes", bytes); }));
  }
  const Spread waited = spread_of(waiting), stood = spread_of(beside);
  fmt::print(
      "{:<6} {:4.0f} MB  checkpoint {}  written beside training {}, {:.2f} of it  the same bytes by write_file {}\n",
      title, static_cast<double>(bytes.size()) * 1e-6, text(waited), text(stood), stood.median / waited.median,
      text(spread_of(plain)));
  fs::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const fs::path folder = (argc > 1 ? fs::path(argv[1]) : fs::temp_directory_path()) / "headrace-checkpoint-bench";
    const int times = argc > 2 ? std::atoi(argv[2]) : 9;
    apply_compute_threads(1);
    OptimizerOptions sgd;
    sgd.name = OptimizerName::sgd;
    measure(folder, "sgd", sgd, times);
    measure(folder, "adamw", {}, times);
    return 0;
  } catch (...) {
    fmt::print(stderr, "checkpoint_bench: {}\n", translate(std::current_exception()).what());
    return 1;
  }
}
