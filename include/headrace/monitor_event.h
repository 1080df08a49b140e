// What a run tells beside its figures: alerts, the settings in force, sinks that fail, and notes of its own.
#pragma once

#include <headrace/alerts.h>
#include <headrace/error.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace headrace {

enum class EventLevel { debug, info, warning, error };  // As Python's logging has them.
const char* to_string(EventLevel level) noexcept;
EventLevel event_level_of(std::string_view text);  // Error{invalid_argument} names the four.

using EventValue = std::variant<bool, std::int64_t, double, std::string>;
struct EventField {
  std::string name;
  EventValue value;
};

// One event, the same for every sink and for Python's logging.
struct MonitorEvent {
  EventLevel level = EventLevel::info;
  std::string name;                  // "alert", "setting", "sink", or a name of the caller's; not empty.
  std::string sentence;              // For people, in one line; not empty.
  std::vector<EventField> fields{};  // For programs. Of two of one name the last holds.
  std::int64_t step = -1;            // -1: of no step.
  std::int64_t wall_ns = 0;          // Since 1970; the monitor sets it.
};

// "alert": a warning where it is raised, information where it is over. Fields: name, metric, kind, raised, value,
// limit.
MonitorEvent event_of(const Alert& alert);
// "setting": information where it holds as it was asked for, else a warning. Fields: key, requested, applied, reason.
// Its sentence is "data.cache: requested decoded, applied off: why".
MonitorEvent event_of(const Applied& setting);

// One object in one line, without its end: {"version":1,"event":"setting","level":"info","wall_time":1764.25,
// "step":null,"sentence":"...","fields":{...}}; wall_time in seconds since 1970. Bytes that are not UTF-8 are replaced,
// a number that is not finite is null.
std::string event_json(const MonitorEvent& event);

}  // namespace headrace
