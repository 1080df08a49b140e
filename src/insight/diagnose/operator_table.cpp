#include <headrace/operator_category.h>
#include <headrace/operator_table.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "insight/diagnose/detail/spans.h"

namespace headrace {
namespace {

// What a name of the record is an operator of.
struct Kind {
  std::size_t row;
  bool has_memory;
};

// A category's shapes, without the space before them; nullopt: it is not `kind`.
std::optional<std::string_view> shapes_in(std::string_view category, std::string_view kind) {
  if (!category.starts_with(kind)) return std::nullopt;
  category.remove_prefix(kind.size());
  if (category.empty()) return category;
  if (category.front() != ' ') return std::nullopt;
  return category.substr(1);
}

constexpr std::ptrdiff_t kNone = -1;

struct Call {
  TraceEvent span;
  Kind kind;
  std::ptrdiff_t parent = kNone;
  std::int64_t children = 0, children_ns = 0, children_bytes = 0;
  bool is_its_parent = false;  // The same call, seen twice.

  std::int64_t ns() const { return span.end_ns - span.begin_ns; }
};

class Table {
 public:
  Table(const TraceRecord& record, bool by_shapes) {
    std::map<std::pair<std::string_view, std::string_view>, std::size_t> known;
    for (const TraceRecord::Name& name : record.names) {
      const auto with_memory = shapes_in(name.category, operators::kCategoryWithMemory);
      const auto found = with_memory ? with_memory : shapes_in(name.category, operators::kCategory);
      kinds_.emplace_back();
      if (!found) continue;
      const std::string_view shapes = by_shapes ? *found : std::string_view();
      const auto [row, is_new] = known.try_emplace(std::pair(std::string_view(name.text), shapes), rows_.size());
      if (is_new) {
        rows_.emplace_back();
        rows_.back().name = name.text;
        rows_.back().shapes = shapes;
      }
      kinds_.back() = Kind{row->second, with_memory.has_value()};
    }
  }

  // Of one thread, in the order in which they began.
  void add(const std::vector<TraceEvent>& spans) {
    std::vector<Call> calls;
    std::vector<std::size_t> open;
    for (const TraceEvent& span : spans) {
      if (!kinds_[span.name]) continue;
      Call call{span, *kinds_[span.name]};
      while (!open.empty() && span.end_ns > calls[open.back()].span.end_ns) open.pop_back();
      if (!open.empty()) {
        call.parent = static_cast<std::ptrdiff_t>(open.back());
        Call& parent = calls[open.back()];
        ++parent.children;
        parent.children_ns += call.ns();
        parent.children_bytes += span.value;
      }
      open.push_back(calls.size());
      calls.push_back(call);
    }
    join_calls_seen_twice(calls);
    for (const Call& call : calls) {
      if (!call.is_its_parent) count(call);
    }
  }

  std::vector<OperatorStatistics> rows() && {
    std::erase_if(rows_, [](const OperatorStatistics& row) { return row.calls == 0; });
    std::stable_sort(rows_.begin(), rows_.end(),
                     [](const OperatorStatistics& a, const OperatorStatistics& b) { return a.self_ns > b.self_ns; });
    return std::move(rows_);
  }

 private:
  // The innermost first, so that of three of a name within each other one is left.
  void join_calls_seen_twice(std::vector<Call>& calls) const {
    for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
      if (call->parent == kNone) continue;
      Call& parent = calls[static_cast<std::size_t>(call->parent)];
      if (parent.children != 1 || rows_[parent.kind.row].name != rows_[call->kind.row].name) continue;
      call->is_its_parent = true;
      parent.children = call->children;
      parent.children_ns = call->children_ns;
      parent.children_bytes = call->children_bytes;
    }
  }

  void count(const Call& call) {
    OperatorStatistics& row = rows_[call.kind.row];
    ++row.calls;
    row.total_ns += call.ns();
    row.self_ns += call.ns() - call.children_ns;
    if (!call.kind.has_memory) return;
    row.bytes = row.bytes.value_or(0) + call.span.value;
    row.self_bytes = row.self_bytes.value_or(0) + call.span.value - call.children_bytes;
  }

  std::vector<std::optional<Kind>> kinds_;  // One a name of the record; nullopt: no operator.
  std::vector<OperatorStatistics> rows_;
};

}  // namespace

std::vector<OperatorStatistics> operator_table(const TraceRecord& record, bool by_shapes) {
  Table table(record, by_shapes);
  for (const std::vector<TraceEvent>& spans : detail::spans_by_thread(record)) table.add(spans);
  return std::move(table).rows();
}

}  // namespace headrace
