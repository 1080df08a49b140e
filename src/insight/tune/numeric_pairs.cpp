#include "insight/tune/numeric_pairs.h"

namespace headrace {
namespace {

void set_all(Settings& settings, const Settings& changes) {
  for (const auto& [key, value] : changes) settings[key] = value;
}

template <class Counts>
Settings settings_where(std::span<const Candidate* const> kept, const Counts& counts) {
  Settings settings;
  for (const Candidate* candidate : kept) {
    if (counts(*candidate)) set_all(settings, candidate->changes);
  }
  return settings;
}

}  // namespace

std::vector<NumericPair> numeric_pairs(const Candidate& tried, std::span<const Candidate* const> kept) {
  const auto is_looser = [&](const Candidate& other) { return other.numerics > tried.numerics; };
  const auto is_alike = [&](const Candidate& other) { return other.changes_batches == tried.changes_batches; };
  const auto counts = [&](const Candidate& other) { return is_alike(other) && !is_looser(other); };
  const auto with_tried = [&](Settings settings) {
    set_all(settings, tried.changes);
    return settings;
  };
  if (tried.numerics == NumericClass::bit_equal && !tried.changes_batches) {
    const auto all = [](const Candidate&) { return true; };
    return {{tried.numerics, settings_where(kept, is_looser), with_tried(settings_where(kept, all))}};
  }
  const Settings alike = with_tried(settings_where(kept, is_alike)), own = with_tried(settings_where(kept, counts));
  if (tried.changes_batches || own == alike) return {{tried.numerics, {}, alike}};
  return {{tried.numerics, {}, own}, {NumericClass::reduced_precision, {}, alike}};
}

}  // namespace headrace
