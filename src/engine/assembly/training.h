// A recipe, built: data, network, trainer. The only place that knows every module.
#pragma once

#include <headrace/batch_planner.h>
#include <headrace/job.h>
#include <headrace/loader.h>
#include <headrace/model.h>
#include <headrace/source.h>
#include <headrace/trainer.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "app/advice/data_context.h"
#include "app/recipe/recipe.h"
#include "core/exec/cores.h"
#include "core/hardware/machine.h"
#include "engine/assembly/trial_index.h"

namespace headrace {

// Owns everything a training run needs. Not thread-safe. Build: reads the data into memory and draws the initial
// weights.
class Training {
 public:
  // Applies the recipe's compute settings to the process, seeds the generators, opens all splits and builds the rest.
  // Errors are those of open_source, Loader, make_network; invalid_argument when model.num_classes is below the data's;
  // and unsupported: train.swa_start of a TorchScript module that has running statistics.
  Training(const Recipe& recipe, const Machine& machine);

  const Recipe& recipe() const { return recipe_; }
  Trainer& trainer() { return *trainer_; }
  Loader& loader() { return *loaders_->train; }
  const Loader& loader() const { return *loaders_->train; }
  // For evaluation: every sample once, in order. Null: the data has no such split.
  Loader* val_loader() { return loaders_->val.get(); }
  Loader* test_loader() { return loaders_->test.get(); }
  const Loader* val_loader() const { return loaders_->val.get(); }
  const Loader* test_loader() const { return loaders_->test.get(); }
  // The forward of evaluation with the weights as they are now (Network::frozen): for many batches with the same
  // weights. Error{unsupported}: a TorchScript module that cannot be frozen.
  Forward frozen_forward() const;
  // All 0 where the source holds its pixels in memory. Error{out_of_memory} when data.cache_mib is more than there is.
  DataContext data_context() const;
  // So that data.index = "build" can be tried: makes an index of the training images in the temporary folder. Returns
  // a sentence that says why there is none; empty where there is one, or where nobody would want one: the crops are no
  // part of their images, the source has none, its own or no place for it, or the recipe asks for one or for a
  // cache.
  // `go_on` as in build_entropy_index.
  std::string make_trial_index(const std::function<bool(std::int64_t done)>& go_on);
  // Its file; empty: there is none. Another process on the same data may use it, as long as this one keeps it.
  std::filesystem::path trial_index_file() const;
  void use_trial_index(const std::filesystem::path& file);
  // What is odd but can be lived with, a sentence each: found in opening the data, and more threads than cores.
  const std::vector<std::string>& remarks() const { return remarks_; }
  std::string frozen_text() const;  // What model.frozen keeps from training, a sentence; empty: nothing.
  const Source& train_source() const { return *train_source_; }
  std::int64_t batches_per_epoch() const { return loader().batches_per_epoch(); }
  // For Transform::from_run(): what evaluation makes of an image, into the run's folder.
  void write_eval_transform(const std::filesystem::path& run) const;
  std::uint64_t data_fingerprint() const { return train_source_->info().fingerprint; }  // Of the training data.

  // Makes the live knobs of `next` hold: those of the whole process (engine/assembly/process_settings.h),
  // compute.intra_op_threads, data.num_workers, data.prefetch_batches, data.cache, model.fusion, model.memory_format,
  // optimizer.fused and optimizer.foreach, train.precision; data.scale_decode, and data.index = "build" by the trial
  // index, which have loaders of their own. Every other key must be as it was built.
  void apply_live(const Recipe& next);
  // The same, `asked` being the settings that `next` was made of. Error{unsupported}: one of them does not hold as it
  // was asked for. Whatever this throws, what held before holds again.
  void apply_live(const Recipe& next, const Settings& asked);
  // How many samples of a batch trainer() best computes at once within the memory there is: by plan_batch_size() with
  // the first batch of the loader, at most data.batch_size. Puts that into the trainer's Progress::micro_batch, 0 where
  // it is the whole batch, and leaves all else as it was; an epoch under way must be over.
  BatchPlan plan_micro_batch();

  // Gives batch normalisations the plain means of their statistics over one more epoch of the training data, with the
  // weights that the model holds: as torch.optim.swa_utils.update_bn. Frozen ones keep theirs. Without any that move:
  // nothing is read. The generator is as before. false: `stop` said true; the statistics are then of what was read.
  bool renew_statistics(const std::function<bool()>& stop = {});

  // Whether loader() is another one then. No epoch of the present one may run any more.
  bool needs_other_loader(const Recipe& next) const { return form_of(next.data) != form_of(recipe_.data); }

  // The recipe's network, without fusion, in float64, with the values that the parameters and buffers have now. Draws
  // from the default generator, as every network that is built.
  std::unique_ptr<Network> float64_network();

  // Requested and applied of every switch that could be refused (honesty rule H-1), as of the last apply_live; of the
  // network's checkpointing as of its last forward: its budget's choice is made by the first training step.
  std::vector<Applied> applied() const;
  // Without what is not decided yet: a budget of checkpointing, before the first training step.
  std::vector<Applied> decided() const;

 private:
  // Loaders stay when others take their place, with their caches.
  struct Loaders {
    std::unique_ptr<Loader> train, val, test;
  };
  using LoaderForm = std::pair<bool, bool>;  // data.scale_decode; by the trial index.

  LoaderForm form_of(const DataOptions& options) const {
    return {options.scale_decode, trial_index_ != nullptr && options.index == IndexUse::build};
  }
  CoreSplit core_split() const;
  void use_loaders(const DataOptions& options);
  void apply_compute();
  void note_applied();

  Recipe recipe_;
  Machine machine_;
  std::vector<Applied> applied_;
  std::vector<std::string> remarks_;
  std::shared_ptr<const Source> train_source_, val_source_, test_source_;  // Null: no such split.
  std::unique_ptr<TrialIndex> trial_index_;                                // Null: none.
  std::unique_ptr<Network> network_;
  std::unique_ptr<Trainer> trainer_;
  std::map<LoaderForm, Loaders> all_loaders_;
  Loaders* loaders_ = nullptr;  // Of them, those in use.
};

// classification() of the network's logits (loss.h), the forward of classification recipes.
Forward classification_forward(Network& network, const LossOptions& loss);

}  // namespace headrace
