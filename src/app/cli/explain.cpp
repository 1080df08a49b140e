#include "app/cli/explain.h"

#include <headrace/live_tuner.h>
#include <headrace/option_fields.h>
#include <headrace/option_text.h>
#include <headrace/tune.h>

#include <nlohmann/json.hpp>

#include "app/recipe/recipe.h"
#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLedgerBytesMax = 256LL << 20;

// What a run's tuner found for each key, one sentence a trial.
using LedgerLines = std::map<std::string, std::vector<std::string>>;

// Of `tune`, or of a run that tuned itself.
std::vector<Trial> read_trials(const std::filesystem::path& path) {
  const std::string text = read_file(path, kLedgerBytesMax);
  const Json document = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const bool is_live = document.is_object() && document.value("format", Json()) == "headrace-live-ledger";
  return is_live ? parse_live_ledger(text, path.string()).ledger.trials : parse_ledger(text, path.string()).trials;
}

LedgerLines read_ledger(const std::filesystem::path& folder) {
  LedgerLines lines;
  for (const Trial& trial : read_trials(folder / "ledger.json")) {
    for (const auto& [key, value] : trial.changes) {
      lines[key].push_back(
          fmt::format("{}: {} = {}: {}, {}", trial.name, key, value, to_string(trial.verdict), trial.sentence));
    }
  }
  return lines;
}

bool is_wanted(const std::string& key, const std::string& wanted) {
  return wanted.empty() || key == wanted || key.rfind(wanted + ".", 0) == 0 || key.rfind(wanted + "[", 0) == 0;
}

std::string value_text(const Field& field) {
  if (field.kind != FieldKind::tables) return to_toml(field.get());
  const std::size_t count = field.element_count();
  return count == 1 ? "1 table" : fmt::format("{} tables", count);
}

Json value_json(const Field& field) {
  if (field.kind == FieldKind::tables) return field.element_count();
  return std::visit([](const auto& value) { return Json(value); }, field.get());
}

Json key_json(const Field& field, const std::string& origin, const std::vector<std::string>& ledger) {
  Json entry{{"key", field.key}, {"value", value_json(field)}, {"origin", origin}};
  entry["range"] = field.range.empty() ? Json(nullptr) : Json(field.range);
  entry["sentence"] = field.sentence;
  if (!ledger.empty()) entry["ledger"] = ledger;
  return entry;
}

std::string key_lines(const Field& field, const std::string& origin, const std::vector<std::string>& ledger) {
  std::string lines = fmt::format("{:<44}  {:<24}  {}", field.key + " = " + value_text(field), origin, field.range);
  lines.erase(lines.find_last_not_of(' ') + 1);
  lines += "\n    " + field.sentence + "\n";
  for (const std::string& line : ledger) lines += "    tuner: " + line + "\n";
  return lines;
}

}  // namespace

std::string options_document() {
  Recipe recipe;
  return "<!-- Written by make docs from the options themselves. -->\n" +
         options_markdown(fields_of(recipe), "Keys of a recipe");
}

std::string schema_document() {
  Recipe recipe;
  return options_schema(fields_of(recipe), "Headrace recipe") + "\n";
}

int run_explain(const Invocation& invocation, Console& console) {
  if (invocation.explain_form != ExplainForm::keys) {
    console.result(invocation.explain_form == ExplainForm::markdown ? options_document() : schema_document());
    return kExitDone;
  }
  if (invocation.recipe.empty() && !invocation.flags.empty()) {
    fail(ErrorCode::invalid_argument, "cli: explain --{} needs a recipe to change", invocation.flags.front().first);
  }
  LoadedRecipe loaded;
  if (!invocation.recipe.empty()) loaded = load_recipe(invocation.recipe, invocation.flags);
  LedgerLines ledger;
  if (invocation.out) ledger = read_ledger(*invocation.out);

  const std::vector<Field> fields = all_fields(loaded.recipe);
  Json document{{"format", "headrace-explain"}, {"version", 1}, {"recipe", invocation.recipe.string()}};
  document["keys"] = Json::array();
  std::string text;
  for (const Field& field : fields) {
    if (!is_wanted(field.key, invocation.key)) continue;
    const auto origin = loaded.origins.find(field.key);
    const std::string from = origin == loaded.origins.end() ? "default" : origin->second;
    document["keys"].push_back(key_json(field, from, ledger[field.key]));
    text += key_lines(field, from, ledger[field.key]);
  }
  if (document["keys"].empty()) field_named(fields, invocation.key);  // Throws with the nearest key.
  console.result(text);
  console.json(document);
  return kExitDone;
}

}  // namespace headrace
