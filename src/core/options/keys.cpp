// Keys: their tables, and what a misspelt one was meant to be.
#include <headrace/option_fields.h>

#include <algorithm>
#include <iterator>

#include "core/base/fail.h"
#include "core/base/nearest_name.h"
#include "core/options/keys.h"

namespace headrace {
namespace {

std::string_view last_part(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

// What other programs call what a key of a recipe decides, as people write it in a recipe or as a keyword.
struct Synonym {
  std::string_view word;  // The last part of the key that was written.
  std::string_view key;   // The recipe's.
};
constexpr Synonym kSynonyms[] = {
    {"bs", "data.batch_size"},
    {"batch", "data.batch_size"},
    {"dataset", "data.source"},
    {"path", "data.source"},
    {"root", "data.source"},
    {"workers", "data.num_workers"},
    {"prefetch", "data.prefetch_batches"},
    {"prefetch_factor", "data.prefetch_batches"},
    {"drop_last", "data.last_batch"},
    {"num_replicas", "data.world_size"},
    {"img_size", "data.transform.size"},
    {"image_size", "data.transform.size"},
    {"resolution", "data.transform.size"},
    {"stddev", "data.transform.std"},
    {"hflip", "data.transform.flip_probability"},
    {"flip", "data.transform.flip_probability"},
    {"horizontal_flip", "data.transform.flip_probability"},
    {"padding", "data.transform.pad"},
    {"arch", "model.name"},
    {"n_classes", "model.num_classes"},
    {"pretrained", "model.weights"},
    {"checkpoint", "model.weights"},
    {"channels_last", "model.memory_format"},
    {"learning_rate", "optimizer.lr"},
    {"wd", "optimizer.weight_decay"},
    {"warmup", "lr_scheduler.warmup_steps"},
    {"scheduler", "lr_scheduler.name"},
    {"max_epochs", "train.epochs"},
    {"num_epochs", "train.epochs"},
    {"amp", "train.precision"},
    {"accumulate_grad_batches", "train.gradient_accumulation_steps"},
    {"grad_clip", "train.max_grad_norm"},
    {"clip_grad_norm", "train.max_grad_norm"},
    {"clip_value", "train.clip_grad_value"},
    {"gradient_clip_val", "train.max_grad_norm"},
    {"num_threads", "compute.intra_op_threads"},
    {"budget", "tune.budget_s"},
};

struct RetiredKey {
  std::string_view key;
  std::string_view successor;
  std::string_view value;      // The line is for this one, as TOML writes it; empty: for each.
  std::string_view value_now;  // Empty: the same.
  std::string_view how;        // What to write now; empty: the same value, or value_now.
};
constexpr RetiredKey kRetiredKeys[] = {
#define RETIRED_KEY(...) {__VA_ARGS__},
#define RETIRED_TABLE(table, successor)
#define RETIRED_VALUE(...)
#define RETIRED_WORD(word, successor)
#include "core/options/retired_names.inc"
#undef RETIRED_KEY
#undef RETIRED_TABLE
};

struct RetiredTable {
  std::string_view table;
  std::string_view successor;
};
constexpr RetiredTable kRetiredTables[] = {
#define RETIRED_KEY(...)
#define RETIRED_TABLE(...) {__VA_ARGS__},
#include "core/options/retired_names.inc"
#undef RETIRED_TABLE
#undef RETIRED_VALUE
};

struct RetiredValue {
  std::string_view key;
  std::string_view value;
  std::string_view value_now;
};
constexpr RetiredValue kRetiredValues[] = {
#define RETIRED_TABLE(...)
#define RETIRED_VALUE(...) {__VA_ARGS__},
#include "core/options/retired_names.inc"
#undef RETIRED_KEY
#undef RETIRED_TABLE
#undef RETIRED_VALUE
#undef RETIRED_WORD
};

// A key may lack the tables around it, as a keyword of Python's does: "batch_size" is data.batch_size.
bool is_short_for(std::string_view written, std::string_view key) {
  return written == key ||
         (key.size() > written.size() && key.ends_with(written) && key[key.size() - written.size() - 1] == '.');
}

bool belongs_to_keyword(const RetiredKey& retired) {
  return retired.how.starts_with("with ");  // Another keyword goes with it, which no recipe has.
}

// A number of worker processes. That of the threads beside them follows from it.
bool counts_processes(std::string_view key) {
  return std::any_of(std::begin(kRetiredKeys), std::end(kRetiredKeys),
                     [&](const RetiredKey& retired) { return retired.key == key && belongs_to_keyword(retired); });
}

// No program can make today's value of the old one alone.
bool needs_a_person(const RetiredKey& retired) {
  return !retired.how.empty() && !belongs_to_keyword(retired);
}

// The key in the table that took its own one's place.
std::string in_current_table(std::string_view key) {
  for (const RetiredTable& retired : kRetiredTables) {
    const std::string_view table = retired.table;
    if (!key.starts_with(table) || (key.size() > table.size() && key[table.size()] != '.')) continue;
    return std::string(retired.successor) + std::string(key.substr(table.size()));
  }
  return std::string(key);
}

// ", which is now data.num_workers": of a key that an earlier version had; empty where none had it. `fields` may lack
// the tables around their keys, too.
std::string advice_on_retired_key(const std::vector<Field>& fields, std::string_view key) {
  std::string advice;
  for (const RetiredKey& retired : kRetiredKeys) {
    if (!is_short_for(key, retired.key) && key != in_current_table(retired.key)) continue;
    const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field& candidate) {
      return is_short_for(candidate.key, retired.successor);
    });
    const bool of_keywords = belongs_to_keyword(retired);
    if (field == fields.end() || (of_keywords && field->key != last_part(field->key))) continue;
    const std::string_view now = retired.how.empty() ? retired.value_now : retired.how;
    advice += advice.empty() ? ", which is now " : ", or ";
    advice += field->key;
    if (!now.empty()) advice += of_keywords ? " " : " = ";
    advice += now;
    if (!retired.value.empty()) advice += fmt::format(" (for {})", retired.value);
  }
  if (!advice.empty()) return advice;
  const std::string now = current_name(key);
  const bool is_known = std::any_of(fields.begin(), fields.end(), [&](const Field& field) {
    return field.key == now || field.key.starts_with(now + ".");  // A key, or a table.
  });
  return now != key && is_known ? fmt::format(", which is now {}", now) : "";
}

bool is_synonym(std::string_view word, std::string_view key) {
  return std::any_of(std::begin(kSynonyms), std::end(kSynonyms),
                     [&](const Synonym& synonym) { return synonym.word == word && is_short_for(key, synonym.key); });
}

// The same setting, with the choice of today in the place of one of an earlier version.
std::pair<std::string, std::string> with_current_value(std::pair<std::string, std::string> setting) {
  for (const RetiredValue& retired : kRetiredValues) {
    if (retired.key != setting.first || setting.second != to_toml(std::string(retired.value))) continue;
    setting.second = to_toml(std::string(retired.value_now));
    break;
  }
  return setting;
}

}  // namespace

std::string current_choice(std::string_view key, std::string_view value) {
  for (const RetiredValue& retired : kRetiredValues) {
    if (is_short_for(key, retired.key) && retired.value == value) return std::string(retired.value_now);
  }
  return std::string(value);
}

std::string table_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? "" : std::string(key.substr(0, dot));
}

std::string current_name(std::string_view key) {
  for (const RetiredKey& retired : kRetiredKeys) {
    if (retired.key == key) return std::string(retired.successor);
  }
  return in_current_table(key);
}

std::pair<std::string, std::string> current_setting(std::string_view key, std::string_view value) {
  for (const RetiredKey& retired : kRetiredKeys) {
    if (retired.key != key) continue;
    if (needs_a_person(retired)) return {std::string(key), std::string(value)};
    if (!retired.value.empty() && retired.value != value) continue;
    return {std::string(retired.successor), std::string(retired.value_now.empty() ? value : retired.value_now)};
  }
  return with_current_value({in_current_table(key), std::string(value)});
}

std::map<std::string, std::string> current_settings(const std::map<std::string, std::string>& settings) {
  const auto loader = settings.find("data.loader");
  const bool threads_load = loader != settings.end() && loader->second == "\"headrace\"";
  std::map<std::string, std::string> current;
  for (const auto& [key, value] : settings) {
    auto [name, value_now] = current_setting(key, value);
    if (counts_processes(key) && !threads_load) {
      current.insert_or_assign(std::move(name), std::move(value_now));
    } else {
      current.emplace(std::move(name), std::move(value_now));
    }
  }
  return current;
}

std::string nearest_key(const std::vector<Field>& fields, std::string_view key) {
  for (const Field& field : fields) {
    if (is_synonym(last_part(key), field.key)) return field.key;
  }
  std::string nearest;
  std::size_t distance_min = edits_allowed(last_part(key)) + 1;
  for (const Field& field : fields) {
    // By the last part, which says what a key is; another table costs one edit: "train.batch_size" is found, and
    // "data.bach_size" before it.
    const bool same_table = table_of(field.key) == table_of(key);
    const std::size_t distance = edit_distance(last_part(field.key), last_part(key)) + (same_table ? 0 : 1);
    if (distance < distance_min) {
      distance_min = distance;
      nearest = field.key;
    }
  }
  if (!nearest.empty()) return nearest;
  // A misspelt table, or dots in the wrong place. No more than an edit or two: tables are long, and what stands behind
  // them must not differ.
  std::size_t whole_min = 3;
  for (const Field& field : fields) {
    const std::size_t distance = edit_distance(field.key, key);
    if (distance < whole_min && last_part(field.key) == last_part(key)) {
      whole_min = distance;
      nearest = field.key;
    }
  }
  return nearest;
}

std::string advice_on_key(const std::vector<Field>& fields, std::string_view key) {
  if (std::string advice = advice_on_retired_key(fields, key); !advice.empty()) return advice;
  if (const std::string nearest = nearest_key(fields, key); !nearest.empty()) {
    return fmt::format(", did you mean {}?", nearest);
  }
  std::vector<std::string> names;
  for (const Field& field : fields) {
    if (table_of(field.key) == table_of(key)) names.emplace_back(last_part(field.key));
  }
  if (names.empty()) {  // No such table.
    for (const Field& field : fields) {
      if (std::string table = table_of(field.key); std::find(names.begin(), names.end(), table) == names.end()) {
        names.push_back(std::move(table));
      }
    }
    std::erase(names, "");
    return names.empty() ? "" : fmt::format("; the tables are {}", fmt::join(names, ", "));
  }
  const std::string table = table_of(key);
  return fmt::format("; the keys{} are {}", table.empty() ? "" : " of " + table, fmt::join(names, ", "));
}

const Field& field_named(const std::vector<Field>& fields, std::string_view key) {
  for (const Field& field : fields) {
    if (field.key == key) return field;
  }
  fail(ErrorCode::invalid_argument, "unknown key {}{}", key, advice_on_key(fields, key));
}

}  // namespace headrace
