#include <headrace/wall_split.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/json.h"

namespace headrace {
namespace {

using detail::seconds;

constexpr const char* kNobodyTellsLocks =
    "no Loader of headrace's ran, and Python does not tell how long a thread waits for its lock";
constexpr const char* kNobodyTellsReads =
    "no Loader of headrace's ran, and other loaders do not tell what they wait for";
constexpr const char* kPythonReads = "a data set in Python reads, and its reading is not told apart from its computing";

enum class Role { none, data_wait, transfer, forward, backward, optimizer, evaluation, checkpoint, epoch_end, step };

struct Part {
  Role role;
  std::int64_t begin_ns;  // After what came before has ended.
  std::int64_t end_ns;
  bool in_step;
  bool validates = false;
};

std::vector<Role> roles_of(const TraceRecord& record) {
  static constexpr std::array<std::pair<const SpanName*, Role>, 9> kKnown{{{&step::kDataWait, Role::data_wait},
                                                                           {&step::kTransfer, Role::transfer},
                                                                           {&step::kForward, Role::forward},
                                                                           {&step::kBackward, Role::backward},
                                                                           {&step::kOptimizer, Role::optimizer},
                                                                           {&loop::kEvaluation, Role::evaluation},
                                                                           {&loop::kCheckpoint, Role::checkpoint},
                                                                           {&loop::kEpochEnd, Role::epoch_end},
                                                                           {&step::kStep, Role::step}}};
  std::vector<Role> roles;
  for (const TraceRecord::Name& name : record.names) {
    const auto found = std::find_if(kKnown.begin(), kKnown.end(),
                                    [&](const auto& known) { return detail::is_named(name, *known.first); });
    roles.push_back(found == kKnown.end() ? Role::none : found->second);
  }
  return roles;
}

// Spans come sorted by their beginnings, an outer one first: a step before its parts.
std::vector<Part> parts_of(const std::vector<TraceEvent>& spans, const std::vector<Role>& roles) {
  std::vector<Part> parts;
  std::int64_t step_end_ns = -1, covered_to_ns = 0;
  for (const TraceEvent& span : spans) {
    const Role role = roles[span.name];
    if (role == Role::none) continue;
    if (role == Role::step) {
      step_end_ns = std::max(step_end_ns, span.end_ns);
      continue;
    }
    if (span.end_ns <= covered_to_ns) continue;
    parts.push_back({role, std::max(span.begin_ns, covered_to_ns), span.end_ns, span.end_ns <= step_end_ns});
    covered_to_ns = span.end_ns;
  }
  return parts;
}

// What is loaded and moved for a call belongs to what the call is; what ends a loader to what its batches were.
void find_validation(std::vector<Part>& parts) {
  bool validates = false;
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    const bool is_call = part->role == Role::evaluation || part->role == Role::forward;
    if (is_call) validates = part->role == Role::evaluation || !part->in_step;
    const bool is_before_call = part->role == Role::data_wait || part->role == Role::transfer;
    part->validates = part->role == Role::evaluation || (!part->in_step && validates && (is_call || is_before_call));
    if (part->role == Role::epoch_end || part->role == Role::backward || part->role == Role::optimizer) {
      validates = false;
    }
  }
  bool validated = false;
  for (Part& part : parts) {
    if (part.role == Role::epoch_end) part.validates = validated;
    if (part.role != Role::checkpoint) validated = part.validates;
  }
}

double& seconds_of(WallSplit& split, const Part& part) {
  if (part.validates) return split.validation_s;
  switch (part.role) {
    case Role::transfer:
      return split.transfer_s;
    case Role::forward:
      return split.forward_s;
    case Role::backward:
      return split.backward_s;
    case Role::optimizer:
      return split.optimizer_s;
    case Role::evaluation:
      return split.validation_s;
    case Role::checkpoint:
      return split.checkpoint_s;
    case Role::data_wait:
    case Role::epoch_end:
    case Role::none:
    case Role::step:
      break;
  }
  return split.data_wait_s;
}

// Of gauges; nullopt: there is none.
std::optional<double> cpu_taken(const TraceRecord& record) {
  std::optional<double> taken;
  for (const TraceEvent& event : record.events) {
    if (!detail::is_named(record.names[event.name], loop::kCpuTaken)) continue;
    taken = taken.value_or(0) + seconds(event.value);
  }
  return taken;
}

nlohmann::ordered_json known(std::optional<double> value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json reason(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

// Of each span the time in which no other one of its thread lies within it.
std::vector<std::int64_t> spent_times(const std::vector<TraceEvent>& spans) {
  std::vector<std::int64_t> own;
  std::vector<std::size_t> open;  // Around the span at hand, the innermost last.
  for (std::size_t i = 0; i < spans.size(); ++i) {
    own.push_back(spans[i].end_ns - spans[i].begin_ns);
    while (!open.empty() && spans[open.back()].end_ns <= spans[i].begin_ns) open.pop_back();
    if (!open.empty()) own[open.back()] -= std::min(spans[i].end_ns, spans[open.back()].end_ns) - spans[i].begin_ns;
    open.push_back(i);
  }
  return own;
}

bool has_span(const TraceRecord& record, std::string_view text) {
  return std::any_of(record.names.begin(), record.names.end(),
                     [&](const TraceRecord::Name& name) { return name.category == "work" && name.text == text; });
}

// A Loader of headrace's tells all of its waits: what it did not tell did not happen.
void settle(Waits& waits, const TraceRecord& record) {
  if (!has_span(record, "load_chunk")) {
    if (!waits.lock_s) waits.why_no_lock = kNobodyTellsLocks;
    if (!waits.io_s) waits.why_no_io = kNobodyTellsReads;
    return;
  }
  for (std::optional<double>* sum : {&waits.empty_queue_s, &waits.full_queue_s, &waits.lock_s, &waits.io_s}) {
    *sum = sum->value_or(0);
  }
  if (has_span(record, "read_by_worker") || has_span(record, "read_by_python")) {
    waits.io_s.reset();
    waits.why_no_io = kPythonReads;
  }
}

}  // namespace

WallSplit split_wall(const TraceRecord& record) {
  const std::vector<Role> roles = roles_of(record);
  std::vector<Part> parts;
  for (const std::vector<TraceEvent>& spans : detail::spans_by_thread(record)) {
    std::vector<Part> of_thread = parts_of(spans, roles);
    if (of_thread.size() > parts.size()) parts = std::move(of_thread);
  }
  // A model that is moved or saved before the first batch is set up.
  const auto first = std::find_if(parts.begin(), parts.end(), [](const Part& part) {
    return part.role != Role::transfer && part.role != Role::checkpoint;
  });
  parts.erase(parts.begin(), first);
  find_validation(parts);

  WallSplit split;
  split.total_s = seconds(record.duration_ns);
  split.cpu_taken_s = cpu_taken(record);
  if (parts.empty()) {
    (record.dropped > 0 ? split.other_s : split.setup_s) = split.total_s;
    return split;
  }
  (record.dropped > 0 ? split.other_s : split.setup_s) = seconds(parts.front().begin_ns);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    seconds_of(split, parts[i]) += seconds(parts[i].end_ns - parts[i].begin_ns);
    if (i == 0) continue;
    const bool between_validations = parts[i - 1].validates && parts[i].validates;
    (between_validations ? split.validation_s : split.python_s) += seconds(parts[i].begin_ns - parts[i - 1].end_ns);
  }
  split.after_s = seconds(record.duration_ns - parts.back().end_ns);
  return split;
}

Waits waits_in(const TraceRecord& record) {
  static constexpr std::array<std::pair<std::string_view, std::optional<double> Waits::*>, 3> kByName{
      {{"wait_for_batch", &Waits::empty_queue_s},
       {"wait_for_worker", &Waits::empty_queue_s},
       {"wait_for_room", &Waits::full_queue_s}}};
  Waits waits;
  for (const std::vector<TraceEvent>& spans : detail::spans_by_thread(record)) {
    const std::vector<std::int64_t> spent_ns = spent_times(spans);
    for (std::size_t i = 0; i < spans.size(); ++i) {
      const TraceRecord::Name& name = record.names[spans[i].name];
      if (name.category != "wait") continue;
      std::optional<double> Waits::*sum = nullptr;
      for (const auto& [text, member] : kByName) {
        if (name.text == text) sum = member;
      }
      if (name.text.starts_with("lock")) sum = &Waits::lock_s;
      if (name.text.starts_with("io")) sum = &Waits::io_s;
      if (sum != nullptr) waits.*sum = (waits.*sum).value_or(0) + seconds(spent_ns[i]);
    }
  }
  settle(waits, record);
  waits.cpu_taken_s = cpu_taken(record);
  return waits;
}

nlohmann::ordered_json to_json(const WallSplit& split) {
  const std::array<std::pair<const char*, double>, 9> parts{{{"data_wait", split.data_wait_s},
                                                             {"transfer", split.transfer_s},
                                                             {"forward", split.forward_s},
                                                             {"backward", split.backward_s},
                                                             {"optimizer", split.optimizer_s},
                                                             {"validation", split.validation_s},
                                                             {"checkpoint", split.checkpoint_s},
                                                             {"python", split.python_s},
                                                             {"other", split.other_s}}};
  nlohmann::ordered_json document{
      {"total_s", split.total_s}, {"setup_s", split.setup_s}, {"after_s", split.after_s}, {"loop_s", split.loop_s()}};
  nlohmann::ordered_json share;
  for (const auto& [name, part_s] : parts) {
    document[std::string(name) + "_s"] = part_s;
    share[name] =
        split.loop_s() > 0 ? nlohmann::ordered_json(part_s / split.loop_s()) : nlohmann::ordered_json(nullptr);
  }
  document["cpu_taken_s"] = known(split.cpu_taken_s);
  document["share"] = std::move(share);
  return document;
}

nlohmann::ordered_json to_json(const Waits& waits) {
  return {{"empty_queue_s", known(waits.empty_queue_s)},
          {"full_queue_s", known(waits.full_queue_s)},
          {"lock_s", known(waits.lock_s)},
          {"io_s", known(waits.io_s)},
          {"cpu_taken_s", known(waits.cpu_taken_s)},
          {"why_no_lock", reason(waits.why_no_lock)},
          {"why_no_io", reason(waits.why_no_io)}};
}

std::string json_text(const WallSplit& split) {
  return to_json(split).dump();
}

std::string json_text(const Waits& waits) {
  return to_json(waits).dump();
}

}  // namespace headrace
