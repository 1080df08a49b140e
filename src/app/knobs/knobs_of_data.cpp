// Knobs of loading that are options of headrace.Loader.
#include <fmt/format.h>

#include <algorithm>

#include "app/knobs/knob.h"
#include "insight/tune/tuner.h"

namespace headrace::knobs {
namespace {

constexpr const char* kNoLoader = "the loader is not a headrace.Loader";

std::string workers_as_written(const DataOptions& data) {
  if (data.num_workers != AUTOTUNE) return fmt::format("{}", data.num_workers);
  return data.auto_tune ? "as many as it finds" : "as many as it begins with";
}

}  // namespace

// What makes decoding itself cheaper comes before the cache, which leaves little of it.
Knob index() {
  return {.key = "data.index",
          .name = "entropy index",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (!context.is_headrace()) return kNoLoader;
            if (context.recipe.data.index == IndexUse::build) return "the loader makes one already";
            if (context.door == Door::python) {
              return "a trial would need an index of all images first: `headrace pack --index` makes it once, and "
                     "Loader(..., index=\"build\") in its first epoch";
            }
            if (context.recipe.train.epochs < 2) return "the run has one epoch, and the first one makes the index";
            return context.data.trial_index ? "" : "there is no index of the images for trials";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            // The first epoch makes it while it decodes, which takes about half as long again.
            return {{.name = std::string(kIndexCandidate),
                     .sentence = "Write an index of the JPEG files beside them in the first epoch, by which later ones "
                                 "decode crops without what lies before them. (Trials use one in the temporary "
                                 "folder.)",
                     .changes = {{"data.index", "\"build\""}},
                     .late_share = std::min(1.0, 1.5 / static_cast<double>(context.recipe.train.epochs))}};
          },
          .numerics = NumericClass::bit_equal,
          .resource = "data",
          .switches = Switches::rebuild,
          .carries_over = true};
}

Knob scale_decode() {
  return {.key = "data.scale_decode",
          .name = "scaled decoding",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (!context.is_headrace()) return kNoLoader;
            if (context.recipe.data.scale_decode) return "the loader has it already";
            if (context.door == Door::python)
              return "it is decided where a Loader is made: Loader(..., scale_decode=True)";
            if (context.recipe.data.cache != Cache::none) return "data.cache spares the decoding";
            return context.data.scaled_share > 0 ? "" : "no crop is so much larger than the batch's images";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            return {{.name = "scaled decoding",
                     .sentence = fmt::format("Decode JPEG at a half, a quarter or an eighth of its size where the crop "
                                             "stays at least twice the batch's images: {:.0f} % of the crops.",
                                             context.data.scaled_share * 100),
                     .changes = {{"data.scale_decode", "true"}}}};
          },
          .numerics = NumericClass::reduced_precision,
          .resource = "data",
          .switches = Switches::rebuild,
          .carries_over = true,
          .changes_batches = true};
}

// Decoding is most of what an encoded image costs. The first epoch pays for it as before, and in the others the images
// that found no room.
Knob cache() {
  return {.key = "data.cache",
          .name = "cache of decoded images",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (!context.is_headrace()) return kNoLoader;
            if (context.recipe.data.cache != Cache::none) {
              return fmt::format("data.cache is {} already", choice_name(context.recipe.data.cache));
            }
            if (context.recipe.train.epochs < 2) return "it pays from the second epoch on, and the run has one";
            return context.data.cache_share > 0 ? "" : "the images lie in memory already, or there is no room for them";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            const double later_epochs = 1 - 1.0 / static_cast<double>(context.recipe.train.epochs);
            return {{.name = "cache of decoded images",
                     .sentence = "Keep images in memory as the first epoch decodes them, as many as data.cache_mib "
                                 "holds.",
                     .changes = {{"data.cache", "\"decoded\""}},
                     .late_share = 1 - context.data.cache_share * later_epochs}};
          },
          .numerics = NumericClass::bit_equal,
          .resource = "data",
          .carries_over = true};
}

namespace {

KnobValue num_workers_value(const KnobContext& context, std::int64_t count) {
  const std::string now = workers_as_written(context.recipe.data);
  KnobValue value{.name = fmt::format("num_workers {}", count),
                  .sentence = fmt::format("Load with {} threads instead of {}.", count, now),
                  .changes = {{"data.num_workers", fmt::format("{}", count)}}};
  if (context.loader == LoaderKind::headrace && count == 0) {
    value.sentence = "Load in the training thread, which frees a core for compute.";
  } else if (context.loader == LoaderKind::headrace_processes) {
    value.sentence = fmt::format("Load with {} processes instead of {}.", count, now);
  } else if (context.loader == LoaderKind::torch) {
    value.sentence = fmt::format("Load with {} worker processes instead of {}.", count, now);
    if (context.workers_change_batches) {
      value.sentence += " Other draws: what the data set draws at random comes from other generators then.";
      value.numerics = NumericClass::rounding;
      value.changes_batches = true;
    }
    // Of a headrace.Loader in its place these would be threads.
    if (context.has_replacement && !is_fixed("data.loader", context.recipe.tune.fixed)) {
      value.changes["data.loader"] = "\"dataloader\"";
    }
  }
  return value;
}

}  // namespace

Knob num_workers() {
  return {.key = "data.num_workers",
          .name = "num_workers",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (context.loader == LoaderKind::other) return context.no_dataloader();
            const bool in_processes = context.loader == LoaderKind::headrace_processes;
            return in_processes && context.cores == 1 && context.recipe.data.num_workers == 1 ? "there is one core"
                                                                                              : "";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            std::vector<std::int64_t> counts{context.cores, std::max<std::int64_t>(1, context.cores / 2), 0};
            // A recipe's loader shares the cores with its compute.
            if (context.door == Door::recipe && context.cores > 3) std::swap(counts[0], counts[1]);
            counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
            // Without processes nothing would read their source.
            if (context.loader == LoaderKind::headrace_processes) counts.pop_back();
            std::erase(counts, context.recipe.data.num_workers);
            std::vector<KnobValue> values;
            for (const std::int64_t count : counts) values.push_back(num_workers_value(context, count));
            return values;
          },
          .numerics = NumericClass::bit_equal,
          .resource = "data",
          .carries_over = true,
          .divides_cores = true};
}

Knob prefetch_batches() {
  return {.key = "data.prefetch_batches",
          .name = "deeper prefetch",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (context.loader == LoaderKind::other) return context.no_dataloader();
            if (context.loader == LoaderKind::torch && context.recipe.data.num_workers == 0) {
              return "no worker prepares batches";
            }
            if (context.recipe.data.prefetch_batches != AUTOTUNE) return "";
            return context.recipe.data.auto_tune ? "the loader itself deepens it where that pays"
                                                 : "it is \"auto\", which stays as it began: data.auto_tune is false";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            const std::int64_t now = context.recipe.data.prefetch_batches, depth = 2 * now;
            const std::string each = context.loader == LoaderKind::torch ? "Each worker prepares" : "Prepare";
            return {{.name = "deeper prefetch",
                     .sentence = fmt::format("{} {} batches ahead instead of {}.", each, depth, now),
                     .changes = {{"data.prefetch_batches", fmt::format("{}", depth)}}}};
          },
          .numerics = NumericClass::bit_equal,
          .resource = "data",
          .carries_over = true};
}

}  // namespace headrace::knobs
