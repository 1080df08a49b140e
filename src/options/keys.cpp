// Keys: their tables, and what a misspelt one was meant to be.
#include <headrace/options.h>

#include <algorithm>

#include "options/keys.h"

namespace headrace {
namespace {

// Insertions, deletions, replacements and swaps of neighbours that lead from one text to the other ("optimal string
// alignment"). Texts beyond 64 characters are nobody's typing error: they are as far apart as they are long.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  if (a.size() > 64 || b.size() > 64) return std::max(a.size(), b.size());
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last = last;
    last = row;
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0U : 1U)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

std::string_view last_part(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? key : key.substr(dot + 1);
}

std::size_t edits_allowed(std::string_view text) {
  return std::max<std::size_t>(1, text.size() / 3);
}

}  // namespace

std::string table_of(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  return dot == std::string_view::npos ? "" : std::string(key.substr(0, dot));
}

std::string nearest_name(const std::vector<std::string>& names, std::string_view name) {
  std::string nearest;
  std::size_t distance_min = edits_allowed(name) + 1;
  for (const std::string& known : names) {
    const std::size_t distance = edit_distance(known, name);
    if (distance < distance_min) {
      distance_min = distance;
      nearest = known;
    }
  }
  return nearest;
}

std::string nearest_key(const std::vector<Field>& fields, std::string_view key) {
  std::vector<std::string> keys;
  for (const Field& field : fields) keys.push_back(field.key);
  std::string nearest;
  std::size_t distance_min = edits_allowed(last_part(key)) + 1;
  for (const std::string& known : keys) {
    // Compared whole, and without tables at the price of one edit: "batch_size" and "train.batch_size" are found.
    const std::size_t distance =
        std::min(edit_distance(known, key), edit_distance(last_part(known), last_part(key)) + 1);
    if (distance < distance_min) {
      distance_min = distance;
      nearest = known;
    }
  }
  return nearest.empty() ? nearest_name(keys, key) : nearest;
}

const Field& field_named(const std::vector<Field>& fields, std::string_view key) {
  for (const Field& field : fields) {
    if (field.key == key) return field;
  }
  const std::string nearest = nearest_key(fields, key);
  fail(ErrorCode::invalid_argument, "unknown key {}{}", key,
       nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest));
}

}  // namespace headrace
