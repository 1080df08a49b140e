#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "insight/diagnose/detail/class_report.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {
namespace {

constexpr std::size_t kShown = 10;

// `whole` is above 0.
double share(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

std::string sentence(const Report& report, std::size_t shown) {
  const auto with_samples = static_cast<std::size_t>(std::count_if(
      report.classes.begin(), report.classes.end(), [](const Report::ClassFigures& one) { return one.samples > 0; }));
  const std::size_t without = report.classes.size() - with_samples;
  std::string text = fmt::format("In the split {}, {} of {} classes, those with the fewest right answers first",
                                 report.classes_of, shown, report.classes.size());
  if (without > 0) text += fmt::format("; {} {} no samples", without, without == 1 ? "has" : "have");
  return text + '.';
}

// Of the answers that named the class, the share that was right.
std::string precision_text(const Report::ClassFigures& one) {
  return one.predicted > 0 ? percent_text(share(one.right, one.predicted)) : kUnavailable;
}

}  // namespace

std::vector<Report::ClassFigures> worst_classes(const Report& report, std::size_t most) {
  std::vector<Report::ClassFigures> classes = report.classes;
  std::erase_if(classes, [](const Report::ClassFigures& one) { return one.samples == 0; });
  std::stable_sort(classes.begin(), classes.end(), [](const Report::ClassFigures& a, const Report::ClassFigures& b) {
    const double of_a = share(a.right, a.samples), of_b = share(b.right, b.samples);
    return of_a < of_b || (of_a == of_b && a.samples > b.samples);
  });
  if (classes.size() > most) classes.resize(most);
  return classes;
}

std::string classes_html(const Report& report) {
  if (report.classes.empty()) return {};
  const std::vector<Report::ClassFigures> worst = worst_classes(report, kShown);
  std::string html = section_opening("classes", "Answers by class");
  html += fmt::format("<p>{}</p>\n", html_text(sentence(report, worst.size())));
  html += "<table class=\"stack\"><thead><tr>" + column_html("Class") + column_html("Right", "number") +
          column_html("Samples", "number") + column_html("Right where predicted", "number") + "</tr></thead><tbody>\n";
  for (const Report::ClassFigures& one : worst) {
    html += fmt::format(
        "<tr><th scope=\"row\">{}</th><td class=\"number\" data-label=\"Right\">{}</td><td class=\"number\" "
        "data-label=\"Samples\">{}</td><td class=\"number\" data-label=\"Right where predicted\">{}</td></tr>\n",
        html_text(one.name), percent_text(share(one.right, one.samples)), one.samples,
        or_unavailable(precision_text(one)));
  }
  return html + "</tbody></table>\n</section>\n";
}

void write_classes(TextPage& page, const Report& report) {
  if (report.classes.empty()) return;
  const std::vector<Report::ClassFigures> worst = worst_classes(report, kShown);
  page.heading("Answers by class");
  page.paragraph(sentence(report, worst.size()), 2);
  const int width = std::max(12, page.width() - 30);
  for (const Report::ClassFigures& one : worst) {
    page.line(fmt::format("  {} {:>7} of {:>8}", padded(clean_text(one.name), std::min(width, 32)),
                          percent_text(share(one.right, one.samples)), one.samples));
  }
}

}  // namespace headrace::detail
