#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/assembly/training_job.h"

namespace headrace {
namespace {

Candidate one(std::string name, std::string sentence, Settings changes, NumericClass numerics, std::string resource) {
  return {std::move(name), std::move(sentence), std::move(changes), numerics, std::move(resource), 0, false};
}

// Decoding is most of what an encoded image costs. The first epoch pays for it as before, and in the others the
// images that found no room.
void add_cache_candidate(std::vector<Candidate>& list, const Recipe& recipe, double cache_share) {
  if (recipe.data.cache != Cache::none || recipe.train.epochs < 2 || cache_share == 0) return;
  Candidate cache = one("cache of decoded images",
                        "Keep images in memory as the first epoch decodes them, as many as data.cache_mib holds.",
                        {{"data.cache", "\"decoded\""}}, NumericClass::bit_equal, "data");
  cache.late_share = 1 - cache_share * (1 - 1.0 / static_cast<double>(recipe.train.epochs));
  list.push_back(std::move(cache));
}

// What makes decoding itself cheaper comes before the cache, which leaves little of it. The first epoch makes the index
// while it decodes, which takes about half as long again; it pays in the others.
void add_decode_candidates(std::vector<Candidate>& list, const Recipe& recipe, const DataContext& context) {
  if (context.trial_index && recipe.train.epochs > 1) {
    Candidate index = one(std::string(kIndexCandidate),
                          "Write an index of the JPEG files beside them in the first epoch, by which later ones decode "
                          "crops without what lies before them. (Trials use one in the temporary folder.)",
                          {{"data.index", "\"build\""}}, NumericClass::bit_equal, "data");
    index.late_share = std::min(1.0, 1.5 / static_cast<double>(recipe.train.epochs));
    list.push_back(std::move(index));
  }
  if (context.scaled_share > 0 && !recipe.data.scale_decode && recipe.data.cache == Cache::none) {
    list.push_back(one("scaled decoding",
                       fmt::format("Decode JPEG at a half, a quarter or an eighth of its size where the crop stays at "
                                   "least twice the batch's images: {:.0f} % of the crops.",
                                   context.scaled_share * 100),
                       {{"data.scale_decode", "true"}}, NumericClass::reduced_precision, "data"));
  }
}

void add_data_candidates(std::vector<Candidate>& list, const Recipe& recipe, const Machine& machine,
                         const DataContext& context) {
  add_decode_candidates(list, recipe, context);
  add_cache_candidate(list, recipe, context.cache_share);
  const std::int64_t cores = machine.cores_usable;
  std::vector<std::int64_t> threads{cores, 0};
  if (cores > 3) threads.insert(threads.begin(), cores / 2);
  const std::string now =
      recipe.data.num_workers == AUTOTUNE ? "as many as it finds" : fmt::format("{}", recipe.data.num_workers);
  for (const std::int64_t count : threads) {
    if (count == recipe.data.num_workers) continue;
    list.push_back(one(fmt::format("num_workers {}", count),
                       count == 0 ? "Load in the training thread, which frees a core for compute."
                                  : fmt::format("Load with {} threads instead of {}.", count, now),
                       {{"data.num_workers", fmt::format("{}", count)}}, NumericClass::bit_equal, "data"));
  }
  if (recipe.data.prefetch_batches == AUTOTUNE) return;  // The loader itself deepens it where that pays.
  const std::int64_t depth = recipe.data.prefetch_batches * 2;
  list.push_back(one("deeper prefetch",
                     fmt::format("Prepare {} batches ahead instead of {}.", depth, recipe.data.prefetch_batches),
                     {{"data.prefetch_batches", fmt::format("{}", depth)}}, NumericClass::bit_equal, "data"));
}

void add_compute_candidates(std::vector<Candidate>& list, const Recipe& recipe, const Machine& machine) {
  if (recipe.model.fusion != Fusion::norm_relu_pool && recipe.model.name == "small_cnn") {
    list.push_back(one("fused normalisation",
                       "Batch normalisation, ReLU and pooling as one operator that reads the images fewer times.",
                       {{"model.fusion", "\"norm_relu_pool\""}}, NumericClass::rounding, "compute"));
  }
  if (recipe.model.memory_format != MemoryFormat::channels_last) {
    list.push_back(one("channels-last",
                       "Images and convolution weights as NHWC, the layout convolutions are fastest in.",
                       {{"model.memory_format", "\"channels_last\""}}, NumericClass::rounding, "compute"));
  }
  if (recipe.train.precision != Precision::bf16) {
    list.push_back(one("bf16 autocast", "Convolutions and matrix products in bfloat16; parameters stay float32.",
                       {{"train.precision", "\"bf16\""}}, NumericClass::reduced_precision, "compute"));
  }
  // After the changes that shrink the rest of a step: its share is larger then, and it is easier to measure.
  if (recipe.optimizer.implementation() != OptimizerImplementation::fused) {
    Settings changes{{"optimizer.fused", "true"}};
    if (recipe.optimizer.foreach == Switch::on) changes["optimizer.foreach"] = "false";
    list.push_back(one("fused optimizer", "Update all parameters in one kernel instead of operator by operator.",
                       std::move(changes), NumericClass::rounding, "compute"));
  }
  if (recipe.compute.allocator != Allocator::arena) {
    list.push_back(one("arena for tensors", "Tensors in memory that stays mapped from step to step.",
                       {{"compute.allocator", "\"arena\""}}, NumericClass::bit_equal, "compute"));
  }
  const std::int64_t cores = machine.cores_usable;
  const std::int64_t now = recipe.compute.intra_op_threads == 0 ? cores : recipe.compute.intra_op_threads;
  if (cores > 1 && now != cores - 1) {
    list.push_back(one("a core for loading",
                       fmt::format("Compute with {} threads and leave one core to the loader.", cores - 1),
                       {{"compute.intra_op_threads", fmt::format("{}", cores - 1)}}, NumericClass::rounding, "data"));
  }
  if (now != cores) {
    list.push_back(one("every core for compute", fmt::format("Compute with {} threads instead of {}.", cores, now),
                       {{"compute.intra_op_threads", fmt::format("{}", cores)}}, NumericClass::rounding, "compute"));
  }
}

}  // namespace

bool divides_cores(const Settings& changes) {
  constexpr std::array<std::string_view, 2> kKeys{"compute.intra_op_threads", "data.num_workers"};
  return std::all_of(changes.begin(), changes.end(), [&](const auto& change) {
    return std::find(kKeys.begin(), kKeys.end(), change.first) != kKeys.end();
  });
}

std::vector<Candidate> candidates(const Recipe& recipe, const Machine& machine, const std::string& bound,
                                  const DataContext& context) {
  std::vector<Candidate> list;
  add_compute_candidates(list, recipe, machine);
  add_data_candidates(list, recipe, machine, context);
  for (const PlantedOptions& planted : recipe.tune.planted) {
    list.push_back(one(planted.name, "A planted knob with a known effect, to test the tuner.",
                       {{"planted." + planted.name, "true"}}, NumericClass::rounding, bound));
  }
  for (Candidate& candidate : list) candidate.divides_cores = divides_cores(candidate.changes);
  std::stable_partition(list.begin(), list.end(), [&](const Candidate& c) { return c.resource == bound; });
  return list;
}

}  // namespace headrace
