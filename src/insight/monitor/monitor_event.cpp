#include <headrace/monitor_event.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr std::array kLevels{std::pair{EventLevel::debug, "debug"}, std::pair{EventLevel::info, "info"},
                             std::pair{EventLevel::warning, "warning"}, std::pair{EventLevel::error, "error"}};

}  // namespace

const char* to_string(EventLevel level) noexcept {
  for (const auto& [known, text] : kLevels) {
    if (known == level) return text;
  }
  return "unknown";
}

EventLevel event_level_of(std::string_view text) {
  for (const auto& [level, known] : kLevels) {
    if (text == known) return level;
  }
  fail(ErrorCode::invalid_argument, "monitor: level: wanted debug, info, warning or error, found {}", text);
}

MonitorEvent event_of(const Alert& alert) {
  MonitorEvent event;
  event.level = alert.raised ? EventLevel::warning : EventLevel::info;
  event.name = "alert";
  event.sentence = alert.sentence;
  event.fields = {{"name", alert.name},     {"metric", alert.metric}, {"kind", std::string(to_string(alert.kind))},
                  {"raised", alert.raised}, {"value", alert.value},   {"limit", alert.limit}};
  event.step = alert.step;
  return event;
}

MonitorEvent event_of(const Applied& setting) {
  MonitorEvent event;
  const bool holds = setting.holds();
  event.level = holds ? EventLevel::info : EventLevel::warning;
  event.name = "setting";
  event.sentence = holds ? fmt::format("{}: applied {}", setting.key, setting.applied)
                         : fmt::format("{}: requested {}, applied {}", setting.key, setting.requested, setting.applied);
  if (!setting.reason.empty()) event.sentence += ": " + setting.reason;
  event.fields = {
      {"key", setting.key}, {"requested", setting.requested}, {"applied", setting.applied}, {"reason", setting.reason}};
  return event;
}

std::string event_json(const MonitorEvent& event) {
  nlohmann::ordered_json fields = nlohmann::ordered_json::object();
  for (const EventField& field : event.fields) {
    std::visit([&](const auto& value) { fields[field.name] = value; }, field.value);
  }
  nlohmann::ordered_json document{{"version", 1},
                                  {"event", event.name},
                                  {"level", to_string(event.level)},
                                  {"wall_time", static_cast<double>(event.wall_ns) * 1e-9},
                                  {"step", nullptr},
                                  {"sentence", event.sentence},
                                  {"fields", std::move(fields)}};
  if (event.step >= 0) document["step"] = event.step;
  return document.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace headrace
