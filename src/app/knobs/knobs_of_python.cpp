// Knobs without an option: python/headrace/_subject.py and _live_knobs.py apply them to the objects of a user's loop.
// And those that recipes plant to test the tuner.
#include <fmt/format.h>

#include <algorithm>

#include "app/knobs/knob.h"
#include "insight/tune/tuner.h"

namespace headrace::knobs {

Knob engine() {
  return {.key = "train.engine",
          .name = "native step",
          .not_applicable = [](const KnobContext& context) -> std::string {
            return context.door == Door::recipe ? "a recipe's steps are the engine's" : "";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            const bool is_fused = context.recipe.optimizer.implementation() == OptimizerImplementation::fused;
            return {{.name = "native step",
                     .sentence = "Backward, update and what lies between them by headrace's engine, without Python.",
                     .changes = {{"train.engine", "\"native\""}},
                     .numerics = is_fused ? NumericClass::bit_equal : NumericClass::rounding}};
          },
          .resource = "compute",
          .python = true};
}

Knob micro_batches() {
  return {
      .key = "train.micro_batches",
      .name = "micro-batches",
      .not_applicable = [](const KnobContext& context) -> std::string {
        return context.door == Door::recipe
                   ? "data.batch_size and train.gradient_accumulation_steps say how a recipe's update is cut"
                   : "";
      },
      .values = [](const KnobContext& context) -> std::vector<KnobValue> {
        std::vector<KnobValue> values;
        for (const int count : {2, 4}) {
          values.push_back(
              {.name = fmt::format("micro-batches {}", count),
               .sentence = fmt::format("Forward and backward on {} parts of a batch, one after the other, so that "
                                       "less memory is in use at once; one update, by the gradient of the whole "
                                       "batch.{}",
                                       count, context.drops_out ? " What is dropped out is drawn for each part." : ""),
               .changes = {{"train.micro_batches", fmt::format("{}", count)}},
               .numerics = context.drops_out ? NumericClass::reduced_precision : NumericClass::rounding});
        }
        return values;
      },
      .resource = "memory",
      .python = true};
}

Knob compile() {
  static constexpr double kCompile_s = 40;  // Where it takes long: 6 to 43 s were seen on two cores.
  return {.key = "model.compile",
          .name = "torch.compile",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (context.door == Door::recipe) return "a recipe's network is C++, which torch.compile does not take";
            if (!context.run_steps) return "the length of the run is not known: give epochs or steps";
            if (context.live) return "";  // The live tuner weighs prepare_s against what is left of the run.
            const double budget_s = context.recipe.tune.budget_s;
            if (budget_s >= 3 * kCompile_s) return "";
            return fmt::format(
                "compiling may take {:g} s, more than a third of the budget of {:g} s; it is tried from "
                "a budget of {:g} s on",
                kCompile_s, budget_s, 3 * kCompile_s);
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            return {{.name = "torch.compile",
                     .sentence = fmt::format("The model's forward and backward compiled by torch.compile; what "
                                             "compiling takes is spread over the {} steps of the run.",
                                             context.run_steps.value_or(0)),
                     .changes = {{"model.compile", "true"}}}};
          },
          .numerics = NumericClass::rounding,
          .resource = "compute",
          .switches = Switches::rebuild,
          .prepare_s = kCompile_s,
          .keeps_both = true,
          .python = true};
}

Knob batched() {
  return {.key = "data.batched",
          .name = "whole batches",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (context.loader == LoaderKind::other) return context.no_dataloader();
            return context.is_headrace() ? "a headrace.Loader makes whole batches" : "";
          },
          .values = [](const KnobContext&) -> std::vector<KnobValue> {
            return {{.name = "whole batches",
                     .sentence = "Images taken from memory and normalised a batch at a time instead of one by one.",
                     .changes = {{"data.batched", "true"}}}};
          },
          .numerics = NumericClass::bit_equal,
          .resource = "data",
          .switches = Switches::live_epoch,
          .excludes = {"data.loader"},
          .carries_over = true,
          .python = true};
}

Knob loader() {
  return {.key = "data.loader",
          .name = "headrace.Loader",
          .not_applicable = [](const KnobContext& context) -> std::string {
            if (context.loader == LoaderKind::other) return context.no_dataloader();
            return context.is_headrace() ? "the loader is a headrace.Loader already" : "";
          },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            const char* other = context.replacement_draws
                                    ? "the order of the samples and random transforms are other draws, drawn by "
                                      "headrace from torch's first seed and the epoch"
                                    : "the same samples come in the same order, with the pixels the same to within "
                                      "rounding";
            // As many threads as the DataLoader has processes; 0 stays 0.
            if (is_fixed("data.num_workers", context.recipe.tune.fixed)) {
              return {{.name = "headrace.Loader",
                       .sentence = fmt::format("A headrace.Loader with num_workers {}, as the DataLoader has, reads "
                                               "the same files in its place; {}.",
                                               context.recipe.data.num_workers, other),
                       .changes = {{"data.loader", "\"headrace\""}}}};
            }
            std::vector<std::int64_t> counts{context.cores, std::max<std::int64_t>(1, context.cores / 2)};
            counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
            std::vector<KnobValue> values;
            for (const std::int64_t count : counts) {
              const bool is_first = count == counts.front();
              values.push_back(
                  {.name = is_first ? "headrace.Loader" : fmt::format("headrace.Loader, num_workers {}", count),
                   .sentence = fmt::format("A headrace.Loader with {} thread{} reads the same files in place of the "
                                           "DataLoader; {}.",
                                           count, count == 1 ? "" : "s", other),
                   .changes = {{"data.loader", "\"headrace\""}, {"data.num_workers", fmt::format("{}", count)}}});
            }
            return values;
          },
          .numerics = NumericClass::reduced_precision,
          .resource = "data",
          .switches = Switches::live_epoch,
          .carries_over = true,
          .changes_batches = true,
          .python = true};
}

Knob planted() {
  return {.key = "tune.planted",
          .name = "planted knobs",
          .not_applicable = [](const KnobContext&) { return std::string(); },
          .values = [](const KnobContext& context) -> std::vector<KnobValue> {
            std::vector<KnobValue> values;
            for (const PlantedOptions& planted : context.recipe.tune.planted) {
              values.push_back({.name = planted.name,
                                .sentence = "A planted knob with a known effect, to test the tuner.",
                                .changes = {{"planted." + planted.name, "true"}}});
            }
            return values;
          },
          .numerics = NumericClass::rounding};
}

}  // namespace headrace::knobs
