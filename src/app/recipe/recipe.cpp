#include "app/recipe/recipe.h"

#include <headrace/option_tables.h>
#include <headrace/option_text.h>

#include <algorithm>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/options/contradictions.h"
#include "core/options/schedules.h"
#include "core/options/transforms.h"

namespace headrace {
namespace {

constexpr std::int64_t kRecipeBytesMax = 1 << 20;

std::string read_recipe(const std::filesystem::path& path) {
  std::error_code ignored;  // Whatever keeps the system from saying, reading the file says it better.
  if (std::filesystem::is_directory(path, ignored)) {
    fail(ErrorCode::invalid_argument, "recipe: {} is a folder, wanted a TOML file", path.string());
  }
  try {
    return read_file(path, kRecipeBytesMax);
  } catch (const Error& error) {
    // Too large a file is no recipe, whatever memory there is.
    if (error.code() == ErrorCode::out_of_memory) throw Error(ErrorCode::invalid_argument, error.what());
    throw;
  }
}

// The one key through TOML, so that a flag and the tuner take every kind of value that a file takes.
void set_from_toml(const std::vector<Field>& fields, const std::string& key, const std::string& value,
                   const std::string& source) {
  for (const KeyLine& line : read_toml(fields, key + " = " + value, source)) {
    if (line.key == key || line.key.rfind(key + "[", 0) == 0) continue;
    fail(ErrorCode::invalid_argument, "{}: {} is more than one value", source, value);
  }
}

void apply_flag(const std::vector<Field>& fields, const std::string& key, const std::string& text) {
  try {
    const Field& field = field_named(fields, key);
    if (field.kind == FieldKind::tables) {
      set_from_toml(fields, key, text, key);
    } else {
      field.set(parse_option(field, text));
    }
  } catch (const Error& error) {
    const std::string message = error.what();
    const bool begins_with_key = message.rfind(key, 0) == 0;
    throw Error(error.code(), "flag --" + (begins_with_key ? "" : key + ": ") + message);
  }
}

[[noreturn]] void contradiction(const std::string& where, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, where + ": " + message);
}

void check_channels(const TransformOptions& transform, const std::string& where) {
  const std::size_t means = transform.mean.size(), deviations = transform.std.size();
  if (means == 0) contradiction(where, "data.transform.mean is empty; one value serves all channels");
  if (deviations == 0) contradiction(where, "data.transform.std is empty; one value serves all channels");
  if (means != deviations && means != 1 && deviations != 1) {
    contradiction(where, fmt::format("data.transform.mean has {} values and data.transform.std has {}; each has one, "
                                     "or one a channel",
                                     means, deviations));
  }
}

void check_dtype(const DataOptions& data, const std::string& where) {
  const std::string wanted{choice_name(PixelType::f32)};
  if (data.transform.dtype != PixelType::f32) {
    contradiction(where, "data.transform.dtype is not float32; the network of a recipe reads float32");
  }
  for (const auto& [key, list] :
       {std::pair{"transforms", &data.transforms}, std::pair{"eval_transforms", &data.eval_transforms}}) {
    if (list->empty() || dtype_after(*list) == wanted) continue;
    contradiction(where,
                  fmt::format("data.{} leaves images as {}; the network of a recipe reads {}, as ToDtype makes it", key,
                              dtype_after(*list), wanted));
  }
}

// A key that acts with some values of another key alone.
struct ConditionalKey {
  const char* key;
  const char* chooser;
  std::vector<std::string> names;
};

// Keys that were set and do nothing: whoever wrote them expects them to act.
void check_idle_keys(Recipe recipe, const std::string& where) {
  constexpr const char* kGuardPolicy = "train.step_guard.policy";
  const std::vector<std::string> forgiving{"skip", "replace", "lower_lr", "rollback"};
  const std::vector<ConditionalKey> conditional{{"optimizer.betas", "optimizer.name", {"adamw", "adam"}},
                                                {"optimizer.eps", "optimizer.name", {"adamw", "adam", "rmsprop"}},
                                                {"optimizer.amsgrad", "optimizer.name", {"adamw", "adam"}},
                                                {"optimizer.momentum", "optimizer.name", {"sgd", "rmsprop"}},
                                                {"optimizer.dampening", "optimizer.name", {"sgd"}},
                                                {"optimizer.nesterov", "optimizer.name", {"sgd"}},
                                                {"optimizer.alpha", "optimizer.name", {"rmsprop"}},
                                                {"optimizer.centered", "optimizer.name", {"rmsprop"}},
                                                {"loss.class_weights", "loss.name", {"cross_entropy"}},
                                                {"train.step_guard.lr_factor", kGuardPolicy, {"lower_lr"}},
                                                {"train.step_guard.keep_every", kGuardPolicy, {"rollback"}},
                                                {"train.step_guard.max_in_a_row", kGuardPolicy, forgiving},
                                                {"train.step_guard.max_faults", kGuardPolicy, forgiving}};
  Recipe untouched;
  const std::vector<Field> fields = fields_of(recipe), defaults = fields_of(untouched);
  for (const ConditionalKey& rule : conditional) {
    const std::string chosen = std::get<std::string>(field_named(fields, rule.chooser).get());
    if (std::find(rule.names.begin(), rule.names.end(), chosen) != rule.names.end()) continue;
    const OptionValue normal = field_named(defaults, rule.key).get();
    if (field_named(fields, rule.key).get() == normal) continue;
    contradiction(where, fmt::format("{} has no effect with {} = \"{}\"; wanted {}, or \"{}\"", rule.key, rule.chooser,
                                     chosen, to_toml(normal), fmt::join(rule.names, "\" or \"")));
  }
  if (!recipe.train.ema_warmup && recipe.train.ema_decay == 0) {
    contradiction(where,
                  "train.ema_warmup has no effect with train.ema_decay = 0; wanted true, or an ema_decay above 0");
  }
}

void check_swa(const TrainOptions& train, const std::string& where) {
  const TrainOptions unset;
  if (train.swa_lr > 0 && train.swa_start == 0) {
    contradiction(where, "train.swa_lr has no effect with train.swa_start = 0; wanted a swa_start above 0");
  }
  if (train.swa_lr == 0 && train.swa_anneal_epochs != unset.swa_anneal_epochs) {
    contradiction(where, "train.swa_anneal_epochs has no effect with train.swa_lr = 0; wanted a swa_lr above 0");
  }
  if (train.swa_lr == 0 && train.swa_anneal_strategy != unset.swa_anneal_strategy) {
    contradiction(where, "train.swa_anneal_strategy has no effect with train.swa_lr = 0; wanted a swa_lr above 0");
  }
  if (train.swa_start > train.epochs) {
    contradiction(where, fmt::format("train.swa_start is {} and train.epochs is {}; wanted an epoch of the run, or 0",
                                     train.swa_start, train.epochs));
  }
  if (train.swa_start > 0 && train.ema_decay > 0) {
    contradiction(where,
                  fmt::format("train.swa_start is {} and train.ema_decay is {}, and either would be the result; wanted "
                              "one of them at 0",
                              train.swa_start, train.ema_decay));
  }
}

void check_loss(const Recipe& recipe, const std::string& where) {
  const std::vector<double>& weights = recipe.loss.class_weights;
  if (weights.empty()) return;
  if (static_cast<std::int64_t>(weights.size()) != recipe.model.num_classes) {
    contradiction(where,
                  fmt::format("loss.class_weights has {} numbers and model.num_classes is {}; wanted one a class",
                              weights.size(), recipe.model.num_classes));
  }
  if (std::all_of(weights.begin(), weights.end(), [](double weight) { return weight == 0; })) {
    contradiction(where, "loss.class_weights are all 0; wanted one above 0");
  }
}

void check_optimizer(const OptimizerOptions& optimizer, const std::string& where) {
  if (optimizer.nesterov && optimizer.momentum == 0) {
    contradiction(where, "optimizer.nesterov is true and optimizer.momentum is 0; wanted a momentum above 0");
  }
  if (optimizer.dampening != 0 && optimizer.momentum == 0) {
    contradiction(where, "optimizer.dampening has no effect with optimizer.momentum = 0; wanted a momentum above 0");
  }
  if (optimizer.nesterov && optimizer.dampening != 0) {
    contradiction(where,
                  fmt::format("optimizer.nesterov is true and optimizer.dampening is {}; wanted a dampening of 0",
                              optimizer.dampening));
  }
  if (optimizer.betas.size() != 2) {
    contradiction(where, fmt::format("optimizer.betas has {} numbers; wanted two", optimizer.betas.size()));
  }
  if (optimizer.fused == Switch::on && optimizer.foreach == Switch::on) {
    contradiction(where, "optimizer.fused and optimizer.foreach are both true; wanted one of them");
  }
  for (std::size_t i = 0; i < optimizer.group.size(); ++i) {
    if (!optimizer.group[i].params.empty()) continue;
    contradiction(where,
                  fmt::format("optimizer.group[{}].params is missing; wanted names of parameters or modules", i));
  }
}

void check_numerics(const TrainOptions& train, const std::string& where) {
  const std::string clipping = clip_contradiction(train, "train.");
  if (!clipping.empty()) contradiction(where, clipping);
  if (train.precision == Precision::fp16 && train.loss_scale == 0) {
    contradiction(
        where,
        "train.precision is \"fp16\" and train.loss_scale is 0, with which small gradients become 0; wanted a "
        "loss_scale, 65536 is usual");
  }
}

void check_tuning(const TuneOptions& tune, const std::string& where) {
  Recipe known;
  const std::vector<Field> fields = fields_of(known);
  for (const std::string& key : tune.fixed) {
    try {
      field_named(fields, key);
    } catch (const Error& error) {
      contradiction(where, std::string("tune.fixed: ") + error.what());
    }
  }
  for (std::size_t i = 0; i < tune.planted.size(); ++i) {
    const std::string& name = tune.planted[i].name;
    if (name.empty()) contradiction(where, fmt::format("tune.planted[{}].name is missing", i));
    for (std::size_t j = 0; j < i; ++j) {
      if (tune.planted[j].name != name) continue;
      contradiction(where, fmt::format("tune.planted[{}].name and tune.planted[{}].name are both \"{}\"", j, i, name));
    }
  }
}

void check_online(const Recipe& recipe, const std::string& where) {
  if (!recipe.tune.online) return;
  if (!recipe.tune.replay.empty()) {
    contradiction(where,
                  "tune.online is true and tune.replay is set; wanted one of them: a run that is repeated tries "
                  "nothing");
  }
  if (!recipe.data.auto_tune) {
    contradiction(where,
                  "tune.online is true and data.auto_tune is false; wanted one of them: with data.auto_tune = "
                  "false nothing adapts itself");
  }
}

// torch's OneCycleLR cannot be stepped beyond its end.
void check_cycle_length(const Recipe& recipe, std::int64_t optimizer_steps) {
  const LrSchedulerOptions& schedule = recipe.lr_scheduler;
  if (schedule.name != LrSchedulerName::OneCycleLR || schedule.total_steps == 0) return;
  const bool by_epoch = schedule.interval == SchedulerInterval::epoch;
  const std::int64_t steps = by_epoch ? recipe.train.epochs : optimizer_steps - schedule.warmup_steps;
  if (schedule.total_steps >= steps) return;
  contradiction(
      "recipe",
      fmt::format(
          "lr_scheduler.total_steps is {} and the run has {} {}; wanted at least as many, or 0 for the whole run",
          schedule.total_steps, steps, by_epoch ? "epochs" : "optimizer steps after the warm-up"));
}

void check(const Recipe& recipe, const std::string& where) {
  if (recipe.data.source.empty()) {
    contradiction(where, "data.source is missing; a recipe names its data, e.g. \"idx:DIR\"");
  }
  if (recipe.model.name.empty()) contradiction(where, "model.name is empty");
  check_channels(recipe.data.transform, where);
  const std::string order = order_contradiction(recipe.data, "data.");
  if (!order.empty()) contradiction(where, order);
  const std::string transform = transform_contradiction(recipe.data.transform, "data.transform.");
  if (!transform.empty()) contradiction(where, transform);
  if (!recipe.data.in_order) {
    contradiction(where, "data.in_order is false; wanted true: a run could be neither repeated nor resumed");
  }
  const std::string transforms = transforms_contradiction(recipe.data, "data.");
  if (!transforms.empty()) contradiction(where, transforms);
  check_dtype(recipe.data, where);
  check_idle_keys(recipe, where);
  check_loss(recipe, where);
  check_optimizer(recipe.optimizer, where);
  const std::string schedule = schedule_contradiction(recipe.lr_scheduler, "lr_scheduler.");
  if (!schedule.empty()) contradiction(where, schedule);
  check_numerics(recipe.train, where);
  check_swa(recipe.train, where);
  check_tuning(recipe.tune, where);
  check_online(recipe, where);
}

}  // namespace

std::vector<Field> all_fields(Recipe& recipe) {
  return with_elements(fields_of(recipe));
}

LoadedRecipe load_recipe(const std::filesystem::path& path,
                         const std::vector<std::pair<std::string, std::string>>& flags) {
  LoadedRecipe loaded;
  loaded.name = path.stem().string();
  const std::vector<Field> fields = fields_of(loaded.recipe);
  const std::string text = read_recipe(path);
  for (const KeyLine& line : read_toml(fields, text, path.string())) {
    loaded.origins[line.key] = fmt::format("{}:{}", path.filename().string(), line.line);
  }
  return with_flags(std::move(loaded), flags, path.string());
}

LoadedRecipe with_flags(LoadedRecipe loaded, const std::vector<std::pair<std::string, std::string>>& flags,
                        const std::string& where) {
  const std::vector<Field> fields = fields_of(loaded.recipe);
  for (const auto& [key, value] : flags) {
    apply_flag(fields, key, value);
    loaded.origins[key] = "flag";
  }
  // One key with two defaults: what is tuned online is the run itself, and no copy of it.
  TuneOptions& tune = loaded.recipe.tune;
  if (tune.online && loaded.origins.try_emplace("tune.allow", "default with tune.online").second) {
    tune.allow = NumericClass::rounding;
  }
  check(loaded.recipe, where);
  // Elements that a flag brought replaced those of the file, whose origins no longer hold.
  Origins origins;
  for (const Field& field : all_fields(loaded.recipe)) {
    const auto known = loaded.origins.find(field.key);
    const std::string table = field.key.substr(0, field.key.find('['));
    const bool from_flag = table != field.key && loaded.origins[table] == "flag";
    origins[field.key] = from_flag ? "flag" : known == loaded.origins.end() ? "default" : known->second;
  }
  loaded.origins = std::move(origins);
  return loaded;
}

void check_recipe(const Recipe& recipe) {
  check(recipe, "recipe");
}

std::int64_t check_run_length(const Recipe& recipe, std::int64_t training_samples) {
  const std::int64_t step = samples_a_step(recipe.data);
  const std::int64_t batches = batches_of(training_samples, step, recipe.data.last_batch);
  if (batches == 0) {
    contradiction(
        "recipe",
        fmt::format(
            "data.batch_size is {} and there are {} training samples: no whole batch for data.last_batch = \"drop\"",
            recipe.data.batch_size, training_samples));
  }
  const std::int64_t steps_an_epoch =
      (batches + recipe.train.gradient_accumulation_steps - 1) / recipe.train.gradient_accumulation_steps;
  const std::int64_t steps = steps_an_epoch * recipe.train.epochs;
  if (recipe.lr_scheduler.warmup_steps > 0 && recipe.lr_scheduler.warmup_steps >= steps) {
    contradiction("recipe", fmt::format("lr_scheduler.warmup_steps is {} and the whole run has {} optimizer steps",
                                        recipe.lr_scheduler.warmup_steps, steps));
  }
  check_cycle_length(recipe, steps);
  return steps;
}

void apply_settings(Recipe& recipe, const std::map<std::string, std::string>& settings) {
  const std::vector<Field> fields = fields_of(recipe);
  for (const auto& [key, value] : settings) set_from_toml(fields, key, value, "setting");
}

}  // namespace headrace
