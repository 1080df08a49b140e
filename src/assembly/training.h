// A recipe, built: data, network, trainer. The only place that knows every module.
#pragma once

#include <headrace/loader.h>
#include <headrace/source.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "hardware/machine.h"
#include "model/network.h"
#include "recipe/recipe.h"

namespace headrace {

// Owns everything a training run needs. Not thread-safe. Build: reads the data into memory and draws the initial
// weights.
class Training {
 public:
  // Applies the recipe's compute settings to the process, seeds the generators, opens both splits and builds the rest.
  // Errors are those of open_source, Loader, make_network; and invalid_argument when model.classes is below the data's.
  Training(const Recipe& recipe, const Machine& machine);

  const Recipe& recipe() const { return recipe_; }
  Trainer& trainer() { return *trainer_; }
  Loader& loader() { return *loader_; }
  Loader& test_loader() { return *test_loader_; }
  const Loader& loader() const { return *loader_; }
  const Loader& test_loader() const { return *test_loader_; }
  // The forward of evaluation with the weights as they are now (Network::frozen): for many batches with the same
  // weights. Error{unsupported}: a TorchScript module that cannot be frozen.
  Forward frozen_forward() const;
  // Share of the training pictures that data.cache = "decoded" has room for (0 to 1), told by the headers of 64 of
  // them. For sources of encoded pictures. Error{out_of_memory} when data.cache_mib is more than there is.
  double cache_share() const;
  // What opening the data found odd but could live with, a sentence each.
  const std::vector<std::string>& remarks() const { return remarks_; }
  std::int64_t batches_per_epoch() const { return loader_->batches_per_epoch(); }
  std::uint64_t data_fingerprint() const { return train_source_->fingerprint(); }  // Of the training data.

  // Makes the live knobs of `next` hold: compute.threads, compute.allocator, data.threads, data.prefetch_batches,
  // data.cache, model.fusion, model.memory_format, optimizer.implementation, train.precision. Every other key must be
  // as it was built.
  void apply_live(const Recipe& next);

  // Requested and applied of every switch that could be refused (honesty rule H-1), as of the last apply_live.
  const std::vector<Applied>& applied() const { return applied_; }

  // The network's parameters and buffers drawn anew from `seed`, the optimizer's state zeroed. For short runs of the
  // tuner.
  void redraw(std::uint64_t seed);

 private:
  void apply_compute(const ComputeOptions& compute);
  void note_applied_index();

  Recipe recipe_;
  Machine machine_;
  std::vector<Applied> applied_;
  std::vector<std::string> remarks_;
  std::shared_ptr<const Source> train_source_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<Loader> loader_;
  std::unique_ptr<Loader> test_loader_;
};

// Cross-entropy of the network's logits, the forward of classification recipes: Output{loss, {"logits"}}.
Forward classification_forward(Network& network);

}  // namespace headrace
