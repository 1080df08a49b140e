#include "insight/diagnose/comparison_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/report_page.h"
#include "insight/diagnose/detail/series.h"
#include "insight/diagnose/detail/svg.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/detail/trace_charts.h"

namespace headrace {
namespace {

using namespace detail;
using Metric = ComparisonPage::Metric;

constexpr std::size_t kMetricsMax = 100, kChartsMax = 20, kStagesMax = 24, kNotesMax = 40;
constexpr double kLabels = 20;  // Percent of a chart's width, for "+12.3 %" on a phone.

struct Tag {
  std::string_view verdict;
  const char *css_class, *sign;
};
// In the order of the page.
constexpr std::array kTags{
    Tag{"missing", "failed", "!"},
    Tag{"regressed", "refused", "\u2715"},
    Tag{"inconclusive", "inconclusive", "?"},
    Tag{"improved", "kept", "\u2713"},
    Tag{"equivalent", "", "="},
};

std::size_t place_of(const Metric& metric) {
  const auto found =
      std::find_if(kTags.begin(), kTags.end(), [&](const Tag& tag) { return tag.verdict == metric.verdict; });
  return static_cast<std::size_t>(found - kTags.begin());
}

std::vector<const Metric*> in_order(const ComparisonPage& page) {
  std::vector<const Metric*> metrics;
  for (const Metric& metric : page.metrics) metrics.push_back(&metric);
  std::stable_sort(metrics.begin(), metrics.end(),
                   [](const Metric* left, const Metric* right) { return place_of(*left) < place_of(*right); });
  return metrics;
}

std::string tag_html(const Metric& metric) {
  const std::size_t place = place_of(metric);
  if (place == kTags.size())
    return fmt::format("<span class=\"tag\">{}</span>", or_unavailable(html_text(metric.verdict)));
  return fmt::format("<span class=\"tag {}\">{} {}</span>", kTags[place].css_class, kTags[place].sign,
                     kTags[place].verdict);
}

// Of a sentence with figures: minus signs, and the hyphens of its words as they are.
std::string sentence_html(const std::string& sentence) {
  std::string html;
  for (const char letter : html_text(sentence)) {
    const bool is_figure = letter >= '0' && letter <= '9' && (html == "-" || html.ends_with(" -"));
    if (is_figure) html.replace(html.size() - 1, 1, "\u2212");
    html += letter;
  }
  return html;
}

// The heading is what comes before the figures, "NEW is worse than OLD", and they stand below it.
std::string verdict_html(const std::string& verdict) {
  if (verdict.empty()) return "<h1>No verdict</h1>\n";
  const std::size_t colon = verdict.find(": ");
  std::string heading = verdict.substr(0, colon);
  if (heading.starts_with("not ")) heading[0] = 'N';
  std::string html = fmt::format("<h1>{}</h1>\n", html_text(heading));
  if (colon != std::string::npos)
    html += fmt::format("<p class=\"lede\">{}</p>\n", sentence_html(verdict.substr(colon + 2)));
  return html;
}

std::string header_html(const ComparisonPage& page) {
  std::string html = fmt::format(
      "<header>\n<p class=\"eyebrow\">Headrace comparison of <b>{}</b> (OLD) with <b>{}</b> (NEW)</p>\n{}",
      or_unavailable(html_text(page.old_label)), or_unavailable(html_text(page.new_label)), verdict_html(page.verdict));
  if (!page.basis.empty()) html += fmt::format("<p class=\"lede\">Compared in {}.</p>\n", html_text(page.basis));
  const std::size_t shown = std::min(kNotesMax, page.notes.size());
  for (std::size_t i = 0; i < shown; ++i) html += fmt::format("<p class=\"lede\">{}</p>\n", html_text(page.notes[i]));
  if (shown < page.notes.size())
    html += fmt::format("<p class=\"lede\">{} more notes.</p>\n", page.notes.size() - shown);
  return html + "</header>\n";
}

// A name of several words may be broken behind each "_", and only there.
std::string breakable_html(const std::string& name) {
  std::string html;
  for (const char letter : name_html(name)) {
    html += letter;
    if (letter == '_') html += "<wbr>";
  }
  return html;
}

std::string metric_row(const Metric& metric) {
  return fmt::format(
      "<tr><th scope=\"row\">{}<span class=\"name\">{}</span></th><td class=\"number\" data-label=\"OLD\">{}</td>"
      "<td class=\"number\" data-label=\"NEW\">{}</td><td data-label=\"Change\">{}</td><td>{}</td></tr>\n",
      tag_html(metric), breakable_html(metric.name), or_unavailable(figure_html(metric.old_value)),
      or_unavailable(figure_html(metric.new_value)), or_unavailable(figure_html(metric.change)),
      or_unavailable(name_html(metric.sentence)));
}

std::string metrics_html(const std::vector<const Metric*>& metrics) {
  std::string html = section_opening("metrics", "Metrics");
  if (metrics.empty()) return html + "<p>No metric was compared.</p>\n</section>\n";
  html +=
      "<table class=\"stack\"><thead><tr><th scope=\"col\">Metric</th><th scope=\"col\" class=\"number\">OLD</th><th "
      "scope=\"col\" class=\"number\">NEW</th><th scope=\"col\">Change, 95 % interval</th><th "
      "scope=\"col\">Verdict</th></tr></thead><tbody>\n";
  const std::size_t shown = std::min(kMetricsMax, metrics.size());
  for (std::size_t i = 0; i < shown; ++i) html += metric_row(*metrics[i]);
  html += "</tbody></table>\n";
  if (shown < metrics.size()) html += fmt::format("<p>{} more metrics are left out.</p>\n", metrics.size() - shown);
  return html + "</section>\n";
}

std::string share_text(double change) {
  return gain_text(change);
}

std::string difference_text(double change) {
  return fmt::format("{:+.4g}", change);
}

std::optional<double> finite(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? value : std::nullopt;
}

bool has_chart(const Metric& metric) {
  return finite(metric.middle) &&
         std::any_of(metric.pairs.begin(), metric.pairs.end(), [](double change) { return std::isfinite(change); });
}

std::string pairs_table(const Metric& metric, const std::vector<double>& shown) {
  std::string html = table_opening(column_html("Pair", "number") + column_html("Change", "number"));
  const std::size_t stride = (metric.pairs.size() + kPairsMax - 1) / kPairsMax;
  const auto text = metric.is_share ? share_text : difference_text;
  for (std::size_t i = 0; i < shown.size(); ++i) {
    html += fmt::format("<tr><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n", i * stride + 1,
                        std::isfinite(shown[i]) ? figure_html(text(shown[i])) : "not finite");
  }
  return html + kTableEnd;
}

std::string metric_chart(const Metric& metric, std::size_t number) {
  const std::vector<double> shown = thinned(metric.pairs, kPairsMax);
  const PairsChart chart{.id = fmt::format("pairs-{}", number),
                         .title = "The pairs of " + label_html(metric.name),
                         .description = fmt::format("{} pairs; {}.", metric.pairs.size(), html_text(metric.change)),
                         .values = shown,
                         .none = 0,
                         .middle = *metric.middle,
                         .low = finite(metric.low),
                         .high = finite(metric.high),
                         .limits = {-metric.tolerance, metric.tolerance},
                         .least_room = metric.tolerance / 2,
                         .left = kLabels,
                         .label = metric.is_share ? share_text : difference_text};
  std::string html = fmt::format("<figure>\n<h3>{} {}</h3>\n{}{}", name_html(metric.name), tag_html(metric),
                                 pairs_svg(chart), pairs_table(metric, shown));
  if (shown.size() < metric.pairs.size()) {
    html += fmt::format("<p>{} of {} pairs are drawn.</p>\n", shown.size(), metric.pairs.size());
  }
  return html + "</figure>\n";
}

std::string pairs_html(const std::vector<const Metric*>& metrics) {
  std::string charts;
  std::size_t drawn = 0, left_out = 0;
  for (const Metric* metric : metrics) {
    if (!has_chart(*metric)) continue;
    if (drawn == kChartsMax) {
      ++left_out;
      continue;
    }
    charts += metric_chart(*metric, drawn++);
  }
  if (charts.empty()) return {};
  std::string html = section_opening("pairs", "The pairs") +
                     "<p>Each dot is one pair of runs: by how much NEW differs from OLD. The line is the middle, the "
                     "band its 95\u00a0% interval. The dashed line is no change at all, and what lies between the two "
                     "thin lines is within the tolerance. The verdict is not read from the band, which holds for one "
                     "look at all pairs.</p>\n" +
                     charts;
  if (left_out > 0) html += fmt::format("<p>The pairs of {} more metrics are left out.</p>\n", left_out);
  return html + "</section>\n";
}

std::string stages_html(const ComparisonPage& page) {
  if (page.stages.empty()) return {};
  std::string html = section_opening("stages", "Parts of a step");
  if (!page.stages_note.empty()) html += fmt::format("<p>{}</p>\n", html_text(page.stages_note));
  html += "<ul>\n";
  const std::size_t shown = std::min(kStagesMax, page.stages.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const ComparisonPage::Stage& stage = page.stages[i];
    html += fmt::format("<li>{}{}</li>\n", stage.has_changed ? "<b>Changed:</b> " : "", html_text(stage.sentence));
  }
  html += "</ul>\n";
  if (shown < page.stages.size())
    html += fmt::format("<p>{} more parts are left out.</p>\n", page.stages.size() - shown);
  return html + "</section>\n";
}

}  // namespace

std::string comparison_html(const ComparisonPage& page) {
  const std::vector<const Metric*> metrics = in_order(page);
  const std::string body = header_html(page) + metrics_html(metrics) + stages_html(page) + pairs_html(metrics) +
                           origin_html(page.command, page.environment);
  return page_html({.title = "Headrace comparison",
                    .verdict = page.verdict,
                    .is_positive = page.is_positive,
                    .written = page.written},
                   body);
}

}  // namespace headrace
