#include <headrace/facade/performance_config.h>
#include <headrace/facade/performance_preset_options.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace::facade {
namespace {

template <std::size_t columns>
using Row = std::array<std::string, columns>;

// As Python writes it.
std::string text_of(const OptionValue& value) {
  if (const auto* const is_on = std::get_if<bool>(&value)) return *is_on ? "True" : "False";
  if (const auto* const text = std::get_if<std::string>(&value)) return *text;
  return to_toml(value);
}

// A line for each row, its cells in columns of one width.
template <std::size_t columns>
std::string aligned(const std::vector<Row<columns>>& rows) {
  std::array<std::size_t, columns> widths{};
  for (const Row<columns>& row : rows) {
    for (std::size_t i = 0; i < columns; ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row<columns>& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < columns; ++i) line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

}  // namespace

std::vector<SettingDifference> PerformanceConfig::diff(const PerformanceConfig& other) const {
  std::vector<SettingDifference> differences;
  for (const std::string& name : performance_setting_names()) {
    const OptionValue here = get(name), there = other.get(name);
    if (here != there) differences.push_back({name, here, there});
  }
  return differences;
}

std::string PerformanceConfig::table() const {
  std::vector<Row<4>> rows{Row<4>{"component", "setting", "value", "set by"}};
  const auto add = [&](std::string_view component, std::string_view name) {
    rows.push_back(
        {std::string(component), std::string(name), text_of(get(name)), std::string(to_string(set_by(name)))});
  };
  add("", "optimization_level");
  for (const SettingComponent& component : kPerformanceComponents) {
    for (const std::string_view name : component.settings) add(component.name, name);
  }
  add("model", "memory_format");
  return aligned(rows);
}

std::string table(std::span<const SettingDifference> differences) {
  std::vector<Row<3>> rows{Row<3>{"setting", "here", "there"}};
  for (const SettingDifference& each : differences) {
    rows.push_back({each.name, text_of(each.here), text_of(each.there)});
  }
  return aligned(rows);
}

}  // namespace headrace::facade
