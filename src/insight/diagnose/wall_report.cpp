#include "insight/diagnose/detail/wall_report.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/svg.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {
namespace {

struct WallPart {
  const char* name;
  const char* fill;  // The class of its fill.
  double seconds;
};

std::array<WallPart, 9> wall_parts(const WallSplit& wall) {
  return {{{"data wait", "part-0", wall.data_wait_s},
           {"transfer", "part-1", wall.transfer_s},
           {"forward", "part-2", wall.forward_s},
           {"backward", "part-3", wall.backward_s},
           {"optimizer", "part-4", wall.optimizer_s},
           {"validation", "area-6", wall.validation_s},
           {"checkpoint", "area-7", wall.checkpoint_s},
           {"Python", "span-work", wall.python_s},
           {"other", "part-5", wall.other_s}}};
}

std::string wall_svg(const WallSplit& wall) {
  constexpr double kNamed = 14;  // Percent that a name needs.
  std::string bars, description;
  double from = 0;
  for (const WallPart& part : wall_parts(wall)) {
    const double share = part.seconds / wall.loop_s(), width = 100 * share;
    description += fmt::format("{} {}; ", part.name, percent_text(share));
    if (!(width > 0)) continue;
    bars += fmt::format(
        "<rect class=\"part {}\" x=\"{:.3f}%\" y=\"0\" width=\"{:.3f}%\" height=\"28\"><title>{}: {}, "
        "{}</title></rect>",
        part.fill, from, width, part.name, time_text(part.seconds), percent_text(share));
    if (width >= kNamed) {
      bars += fmt::format("<text class=\"inside\" x=\"{:.3f}%\" y=\"19\">{}</text>", from + width / 2, part.name);
    }
    from += width;
  }
  return svg_opening("wall", "split", 30, "Wall time of the loop by its parts", description) + bars + "</svg>\n";
}

std::string wall_table(const WallSplit& wall) {
  std::string html = "<table class=\"split-table\"><thead><tr>" + column_html("Part") + column_html("Time", "number") +
                     column_html("Of the loop", "number") + "</tr></thead><tbody>\n";
  for (const WallPart& part : wall_parts(wall)) {
    html += fmt::format(
        "<tr><th scope=\"row\"><svg class=\"swatch\" width=\"18\" height=\"12\" aria-hidden=\"true\"><rect "
        "class=\"part "
        "{}\" width=\"18\" height=\"12\"/></svg>{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        part.fill, part.name, time_text(part.seconds), percent_text(part.seconds / wall.loop_s()));
  }
  return html + "</tbody></table>\n";
}

std::string waits_table(const Waits& waits) {
  struct Row {
    const char* name;
    std::optional<double> seconds;
    std::string why_not;
  };
  const Row rows[] = {{"an empty queue", waits.empty_queue_s, ""},
                      {"room in a full queue", waits.full_queue_s, ""},
                      {"a lock", waits.lock_s, waits.why_no_lock},
                      {"a file or a socket", waits.io_s, waits.why_no_io},
                      {"a core that others had", waits.cpu_taken_s, ""}};
  std::string html = "<table class=\"waits\"><thead><tr>" + column_html("For") +
                     column_html("All threads together", "number") + "</tr></thead><tbody>\n";
  for (const auto& [name, seconds, why_not] : rows) {
    html += fmt::format("<tr><th scope=\"row\">{}</th><td class=\"number\">{}{}</td></tr>\n", name,
                        or_unavailable(seconds ? time_text(*seconds) : ""),
                        why_not.empty() ? "" : ": " + html_text(why_not));
  }
  return html + "</tbody></table>\n";
}

std::string parts_html(const WallSplit& wall) {
  std::string html =
      fmt::format("<p>{} in all: {} before the first part, {} of loop, {} behind the last part.</p>\n",
                  time_text(wall.total_s), time_text(wall.setup_s), time_text(wall.loop_s()), time_text(wall.after_s));
  if (wall.loop_s() > 0) html += "<figure>\n" + wall_svg(wall) + wall_table(wall) + "</figure>\n";
  return html;
}

}  // namespace

std::string wall_html(const Report& report) {
  std::string html;
  if (report.wall) {
    html += section_opening("wall", "Where the wall time goes") + parts_html(*report.wall) + "</section>\n";
  }
  if (report.waits) {
    html += section_opening("waits", "What threads waited for") + waits_table(*report.waits) + "</section>\n";
  }
  return html;
}

}  // namespace headrace::detail
