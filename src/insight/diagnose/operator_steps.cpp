#include <headrace/operator_steps.h>

#include <headrace/operator_category.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string_view>
#include <vector>

#include "insight/diagnose/detail/spans.h"

namespace headrace {
namespace {

enum class Kind : std::uint8_t { none, step, data_wait, backward, optimizer, operation };

// Names of torch's scopes: torch.utils.data.dataloader, torch.optim.optimizer, torch/csrc/autograd/engine.cpp.
Kind kind_of(const TraceRecord::Name& name) {
  const std::string_view text = name.text;
  if (detail::is_named(name, operators::kStep)) return Kind::step;
  if (text == "wait_for_batch" && name.category == "wait") return Kind::data_wait;
  if (!name.category.starts_with(operators::kCategory)) return Kind::none;
  if (text.starts_with("enumerate(DataLoader)#")) return Kind::data_wait;
  if (text.starts_with("Optimizer.step#") || text.starts_with("Optimizer.zero_grad#")) return Kind::optimizer;
  if (text.starts_with("autograd::engine::evaluate_function: ")) return Kind::backward;
  // Else a scope of the user's own, which may hold a whole step.
  return text.find("::") == std::string_view::npos ? Kind::none : Kind::operation;
}

struct Stretch {
  Kind kind;
  std::int64_t begin_ns, end_ns;
};

// What an operator in none of torch's scopes is for, by what comes before and behind it in its step.
void settle_operations(std::vector<Stretch>& units) {
  bool before_backward = false, before_update = false;
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
    if (unit->kind == Kind::backward) before_backward = true;
    if (unit->kind == Kind::optimizer) before_update = true;
    if (unit->kind != Kind::operation) continue;
    if (!before_backward) unit->kind = before_update ? Kind::optimizer : Kind::none;
  }
  const auto has_backward = [](const Stretch& unit) { return unit.kind == Kind::backward; };
  if (std::none_of(units.begin(), units.end(), has_backward)) {
    std::erase_if(units, [](const Stretch& unit) { return unit.kind != Kind::data_wait; });
  }
  std::erase_if(units, [](const Stretch& unit) { return unit.kind == Kind::none; });
}

// Neighbours of one kind are one part, with what lies between them.
std::vector<Stretch> parts_of(std::vector<Stretch> units) {
  settle_operations(units);
  std::vector<Stretch> parts;
  for (const Stretch& unit : units) {
    if (parts.empty() || parts.back().kind != unit.kind) {
      parts.push_back(unit);
    } else {
      parts.back().end_ns = unit.end_ns;
    }
  }
  return parts;
}

const SpanName& name_of(Kind kind) {
  switch (kind) {
    case Kind::data_wait:
      return step::kDataWait;
    case Kind::backward:
      return step::kBackward;
    case Kind::optimizer:
      return step::kOptimizer;
    case Kind::operation:
      return step::kForward;
    case Kind::step:
    case Kind::none:
      break;
  }
  return step::kStep;
}

class StepsOfOperators {
 public:
  explicit StepsOfOperators(const TraceRecord& record) {
    for (const TraceRecord::Name& name : record.names) kinds_.push_back(kind_of(name));
  }

  // In the order in which they began: a step, then its parts.
  std::vector<std::vector<Stretch>> of_thread(const std::vector<TraceEvent>& spans) const {
    std::vector<std::vector<Stretch>> steps;
    for (const TraceEvent& span : spans) {
      if (kinds_[span.name] == Kind::step) steps.push_back({{Kind::step, span.begin_ns, span.end_ns}});
    }
    std::int64_t covered_to = std::numeric_limits<std::int64_t>::min();
    std::size_t at = 0;
    for (const TraceEvent& span : spans) {
      const Kind kind = kinds_[span.name];
      if (kind == Kind::none || kind == Kind::step || span.begin_ns < covered_to) continue;
      covered_to = span.end_ns;
      while (at < steps.size() && steps[at].front().end_ns <= span.begin_ns) ++at;
      if (at == steps.size()) break;
      const bool is_inside = span.begin_ns >= steps[at].front().begin_ns && span.end_ns <= steps[at].front().end_ns;
      if (is_inside) steps[at].push_back({kind, span.begin_ns, span.end_ns});
    }
    for (std::vector<Stretch>& step : steps) {
      std::vector<Stretch> parts = parts_of({step.begin() + 1, step.end()});
      step.resize(1, step.front());
      step.insert(step.end(), parts.begin(), parts.end());
    }
    return steps;
  }

 private:
  std::vector<Kind> kinds_;  // Of the record's names.
};

bool has(const TraceRecord& record, const SpanName& wanted) {
  return std::any_of(record.events.begin(), record.events.end(), [&](const TraceEvent& event) {
    return event.end_ns > event.begin_ns && detail::is_named(record.names[event.name], wanted);
  });
}

std::uint32_t index_of(TraceRecord& record, const SpanName& wanted) {
  const auto found = std::find_if(record.names.begin(), record.names.end(),
                                  [&](const TraceRecord::Name& name) { return detail::is_named(name, wanted); });
  const auto index = static_cast<std::uint32_t>(found - record.names.begin());
  if (found == record.names.end()) record.names.push_back({wanted.text, wanted.category});
  return index;
}

}  // namespace

TraceRecord with_operator_steps(TraceRecord record) {
  const std::vector<std::vector<TraceEvent>> threads = detail::spans_by_thread(record);
  if (has(record, step::kStep) || !has(record, operators::kStep)) return record;
  const StepsOfOperators found(record);
  std::vector<TraceEvent> added;
  std::map<Kind, std::uint32_t> index;  // A record may have many names.
  for (std::size_t thread = 0; thread < threads.size(); ++thread) {
    std::int64_t number = 0;
    for (const std::vector<Stretch>& step : found.of_thread(threads[thread])) {
      for (const Stretch& part : step) {
        const std::int64_t value = part.kind == Kind::step ? number++ : 0;
        if (!index.contains(part.kind)) index[part.kind] = index_of(record, name_of(part.kind));
        added.push_back({index[part.kind], static_cast<std::uint32_t>(thread), part.begin_ns, part.end_ns, value});
      }
    }
  }
  record.events.insert(record.events.begin(), added.begin(), added.end());
  std::stable_sort(record.events.begin(), record.events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  return record;
}

}  // namespace headrace
