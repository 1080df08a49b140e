#include "python/train_fields.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>
#include <utility>

namespace headrace::python {
namespace {

constexpr std::array<std::string_view, 7> kOfFit{"checkpoint_every_s",      "keep_checkpoints", "async_checkpoints",
                                                 "early_stopping_patience", "swa_lr",           "swa_anneal_epochs",
                                                 "swa_anneal_strategy"};
// Those of a recipe's run alone: in Python headrace.plan_batch_size() plans before a Trainer steps, and fit() has a
// swa_start of its own, which the number of its epochs bounds.
constexpr std::array<std::string_view, 2> kOfRecipe{"plan_batch_size", "swa_start"};

bool is_of_fit(const Field& field) {
  return std::find(kOfFit.begin(), kOfFit.end(), field.key) != kOfFit.end();
}

bool is_of_recipe(const Field& field) {
  return std::find(kOfRecipe.begin(), kOfRecipe.end(), field.key) != kOfRecipe.end();
}

}  // namespace

std::vector<Field> trainer_fields(TrainOptions& options, LrSchedulerOptions& schedule) {
  std::vector<Field> fields = fields_of(options);
  std::erase_if(fields, [](const Field& field) { return is_of_fit(field) || is_of_recipe(field); });
  for (Field& field : fields_of(schedule, "lr_scheduler.")) fields.push_back(std::move(field));
  return fields;
}

std::vector<Field> fit_fields(TrainOptions& options) {
  std::vector<Field> fields = fields_of(options);
  std::erase_if(fields, std::not_fn(is_of_fit));
  return fields;
}

}  // namespace headrace::python
