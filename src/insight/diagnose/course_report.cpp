#include "insight/diagnose/detail/course_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/loading_report.h"
#include "insight/diagnose/detail/svg.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {
namespace {

using Course = Report::Course;

constexpr std::size_t kRowsMax = 24;
constexpr std::size_t kSlots = 120;                // That the run is divided into, on the page.
constexpr int kRow = 32, kBarTop = 16, kBar = 10;  // Pixels.

std::span<const Course::Row> shown_rows(const Course& course) {
  return {course.rows.data(), std::min(course.rows.size(), kRowsMax)};
}

// Which of `count` equal shares of the run's updates had the change in force, if only for a moment.
std::vector<bool> slots_of(const Course& course, const Course::Row& row, std::size_t count) {
  std::vector<bool> slots(count, false);
  const auto slot_at = [&](std::int64_t update) {
    const double place = static_cast<double>(update - 1) / static_cast<double>(course.updates);
    return std::min(static_cast<std::size_t>(place * static_cast<double>(count)), count - 1);
  };
  for (const auto& [first, last] : row.updates) {
    for (std::size_t slot = slot_at(first); slot <= slot_at(last); ++slot) slots[slot] = true;
  }
  return slots;
}

std::int64_t updates_in_force(const Course::Row& row) {
  std::int64_t updates = 0;
  for (const auto& [first, last] : row.updates) updates += last - first + 1;
  return updates;
}

// Of the run's updates.
std::string share_text(const Course& course, const Course::Row& row) {
  return percent_text(static_cast<double>(updates_in_force(row)) / static_cast<double>(course.updates));
}

std::string left_out_text(const Course& course) {
  if (course.rows.size() <= kRowsMax) return {};
  return fmt::format("{} further changes are left out.",
                     count_text(static_cast<std::int64_t>(course.rows.size() - kRowsMax)));
}

std::string row_svg(const Course& course, const Course::Row& row, int y) {
  std::string svg = fmt::format(
      "<g><title>{0}: {1} of the updates</title><text x=\"0\" y=\"{2}\">{3}</text><text class=\"figure\" x=\"100%\" "
      "y=\"{2}\">{1} of the updates</text>",
      name_html(row.name), share_text(course, row), y + 12, label_html(row.name));
  const std::vector<bool> slots = slots_of(course, row, kSlots);
  for (std::size_t begin = 0; begin < slots.size(); ++begin) {
    if (!slots[begin]) continue;
    std::size_t end = begin;
    while (end < slots.size() && slots[end]) ++end;
    constexpr double kSlot = 100.0 / kSlots;  // Percent.
    svg += fmt::format("<rect class=\"part part-2\" x=\"{:.2f}%\" y=\"{}\" width=\"{:.2f}%\" height=\"{}\"/>",
                       kSlot * static_cast<double>(begin), y + kBarTop, kSlot * static_cast<double>(end - begin), kBar);
    begin = end;
  }
  return svg + "</g>\n";
}

std::string course_svg(const Course& course) {
  const std::span<const Course::Row> rows = shown_rows(course);
  const int bottom = kRow * static_cast<int>(rows.size());
  std::string svg =
      svg_opening("course", "timeline", bottom + 20, "What was in force over the run",
                  fmt::format("{} changes over {} updates; the table has the figures.",
                              count_text(static_cast<std::int64_t>(rows.size())), count_text(course.updates)));
  for (std::size_t i = 0; i < rows.size(); ++i) svg += row_svg(course, rows[i], kRow * static_cast<int>(i));
  return svg + fmt::format(
                   "<text class=\"scale\" x=\"0\" y=\"{0}\">update 1</text><text class=\"scale figure\" x=\"100%\" "
                   "y=\"{0}\">update {1}</text></svg>\n",
                   bottom + 14, count_text(course.updates));
}

std::string course_table(const Course& course) {
  std::string html =
      table_opening(column_html("Change") + column_html("Times", "number") + column_html("Updates", "number") +
                    column_html("First", "number") + column_html("Last", "number"));
  for (const Course::Row& row : shown_rows(course)) {
    html += fmt::format(
        "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
        "class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        name_html(row.name), count_text(static_cast<std::int64_t>(row.updates.size())),
        count_text(updates_in_force(row)), count_text(row.updates.front().first),
        count_text(row.updates.back().second));
  }
  return html + kTableEnd;
}

bool has_course(const Report& report) {
  return report.course && report.course->updates > 0 && !report.course->rows.empty();
}

}  // namespace

std::string course_html(const Report& report) {
  if (!has_course(report)) return {};
  const Course& course = *report.course;
  std::string html = section_opening("course", "What was in force over the run");
  html += fmt::format(
      "<p>A line for each change that was in force at all, and a bar wherever it was. A short time is drawn as wide as "
      "one of {} equal shares of the run.</p>\n<figure>\n{}{}</figure>\n",
      kSlots, course_svg(course), course_table(course));
  if (const std::string left_out = left_out_text(course); !left_out.empty()) html += "<p>" + left_out + "</p>\n";
  return html + "</section>\n";
}

void write_course(TextPage& page, const Report& report) {
  constexpr int kName = 24, kShare = 8;
  if (!has_course(report)) return;
  const Course& course = *report.course;
  page.heading(fmt::format("In force over {} updates", count_text(course.updates)));
  const int width = page.width() - 2 - kName - kShare - 2;  // At least 4.
  for (const Course::Row& row : shown_rows(course)) {
    std::string track;
    for (const bool on : slots_of(course, row, static_cast<std::size_t>(width))) track += on ? "█" : "·";
    page.line(
        fmt::format("  {}{:>{}}  {}", padded(clean_text(row.name), kName), share_text(course, row), kShare, track));
  }
  if (const std::string left_out = left_out_text(course); !left_out.empty()) page.paragraph(left_out, 2, Ink::faint);
}

}  // namespace headrace::detail
