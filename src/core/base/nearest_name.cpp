#include "core/base/nearest_name.h"

#include <algorithm>

namespace headrace {
namespace {

std::string in_small_letters(std::string_view text) {
  std::string small{text};
  for (char& c : small) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return small;
}

}  // namespace

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

std::size_t edits_allowed(std::string_view text) {
  return std::max<std::size_t>(1, text.size() / 3);
}

std::string nearest_name(const std::vector<std::string>& names, std::string_view name) {
  std::string nearest;
  const std::string small = in_small_letters(name);
  std::size_t distance_min = edits_allowed(name) + 1;
  for (const std::string& known : names) {
    const std::size_t distance = edit_distance(in_small_letters(known), small);
    if (distance < distance_min) {
      distance_min = distance;
      nearest = known;
    }
  }
  return nearest;
}

}  // namespace headrace
