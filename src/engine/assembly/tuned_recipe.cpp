#include "engine/assembly/tuned_recipe.h"

#include <fmt/format.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>

#include <string>
#include <utility>

#include "app/knobs/strategy_name.h"
#include "core/base/files.h"
#include "engine/assembly/planted_knobs.h"

namespace headrace {
namespace {

bool is_of_recipe(const std::string& key) {
  return !key.starts_with(kPlantedPrefix) && !key.starts_with(kStrategyPrefix);
}

}  // namespace

Settings as_written(Recipe recipe, const std::vector<Candidate>& candidates) {
  Settings settings;
  const std::vector<Field> fields = fields_of(recipe);
  for (const Candidate& candidate : candidates) {
    for (const auto& [key, value] : candidate.changes) {
      settings[key] = is_of_recipe(key) ? to_toml(field_named(fields, key).get()) : "false";
    }
  }
  return settings;
}

Recipe tuned_recipe(const Recipe& recipe, const Ledger& ledger) {
  Recipe tuned = recipe;
  Settings settings;
  for (const auto& [key, value] : ledger.best) {
    if (is_of_recipe(key)) settings.emplace(key, value);
  }
  apply_settings(tuned, settings);
  return tuned;
}

void write_tuned_toml(const std::filesystem::path& path, Recipe tuned, const Ledger& ledger) {
  const auto comment = [&](const std::string& key) -> std::string {
    for (const Trial& trial : ledger.trials) {
      if (trial.verdict == Verdict::kept && trial.changes.contains(key) && trial.gain) {
        return fmt::format("tuned: {:+.1f} % [{:+.1f}, {:+.1f}], {} pairs", trial.gain->median * 100,
                           trial.gain->low * 100, trial.gain->high * 100, trial.pairs);
      }
    }
    return {};
  };
  write_file(path, write_toml(fields_of(tuned), comment));
}

}  // namespace headrace
