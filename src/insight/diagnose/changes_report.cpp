#include "insight/diagnose/detail/changes_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "insight/diagnose/detail/charts.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/series.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/detail/trace_charts.h"

namespace headrace::detail {
namespace {

std::string waterfall_table(const std::vector<WaterfallRow>& rows) {
  std::string html =
      table_opening(column_html("Step") + column_html("Gain", "number") + column_html("Samples per second", "number"));
  for (const WaterfallRow& row : rows) {
    html += fmt::format("<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
                        html_text(row.label), figure_html(row.gain), grouped(row.to));
  }
  return html + kTableEnd;
}

std::string waterfall_html(const Report& report) {
  std::string html = section_opening("waterfall", "From before to after");
  if (!is_measured(report.baseline_samples_per_second) || !is_measured(report.best_samples_per_second)) {
    if (report.live) return {};
    return html + "<p>Samples per second before and after: unavailable.</p>\n</section>\n";
  }
  const auto kept = std::count_if(report.changes.begin(), report.changes.end(),
                                  [](const Report::Change& change) { return change.verdict == "kept"; });
  html +=
      kept > 0
          ? "<p>Samples per second, with each kept change on top of the ones before it. A change\u2019s bar is its own "
            "gain, measured when it was tried; the last bar is all of them together, measured again.</p>\n"
          : "<p>Samples per second. No change was kept.</p>\n";
  const std::vector<WaterfallRow> rows = waterfall_rows(report);
  return html + "<figure>\n" + waterfall_svg(rows) + "\n" + waterfall_table(rows) + "</figure>\n</section>\n";
}

bool has_pairs(const Report& report) {
  return report.speedup_pairs > 0 && std::isfinite(report.speedup) && std::isfinite(report.speedup_low) &&
         std::isfinite(report.speedup_high) &&
         std::any_of(report.speedup_ratios.begin(), report.speedup_ratios.end(),
                     [](double ratio) { return std::isfinite(ratio); });
}

std::string pairs_table(const Report& report) {
  const std::vector<double> ratios = thinned(report.speedup_ratios, kPairsMax);
  std::string html = table_opening(column_html("Pair", "number") + column_html("Times as fast", "number"));
  const std::size_t stride = stride_of(report.speedup_ratios.size(), kPairsMax);
  for (std::size_t i = 0; i < ratios.size(); ++i) {
    html += fmt::format("<tr><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n", i * stride + 1,
                        fixed_text(ratios[i], 3));
  }
  return html + kTableEnd;
}

std::string speedup_pairs_html(const Report& report) {
  if (!has_pairs(report)) return {};
  return section_opening("pairs", "The pairs behind the speedup") +
         fmt::format(
             "<p>Each dot is one pair of neighbouring blocks: how many times as fast the one with all that was kept "
             "ran. The line is their speedup, {}, the band its 95\u00a0% interval; the dashed line is no gain at "
             "all.</p>\n"
             "<figure>\n{}{}</figure>\n</section>\n",
             speedup_text(report), pairs_svg(report), pairs_table(report));
}

std::string tag_html(const std::string& verdict) {
  if (verdict == "kept") return "<span class=\"tag kept\">\u2713 kept</span>";
  if (verdict == "refused") return "<span class=\"tag refused\">\u2715 refused</span>";
  if (verdict == "failed") return "<span class=\"tag failed\">! failed</span>";
  if (verdict == "inconclusive") return "<span class=\"tag inconclusive\">? inconclusive</span>";
  return fmt::format("<span class=\"tag\">{}</span>", or_unavailable(html_text(verdict)));
}

std::string change_row(const Report::Change& change, const GainRange& range) {
  const bool is_known_verdict = change.verdict == "kept" || change.verdict == "refused" || change.verdict == "failed" ||
                                change.verdict == "inconclusive";
  std::string settings;
  for (const auto& [key, value] : change.settings) {
    settings += fmt::format("<span class=\"detail\"><code>{} = {}</code></span>", html_text(key), html_text(value));
  }
  std::string gain = or_unavailable("");
  if (change.gain) {
    const std::string interval = interval_text(change.gain_low, change.gain_high);
    gain = fmt::format("<b>{}</b>{}", figure_html(gain_text(*change.gain)),
                       interval.empty() ? "" : fmt::format(" <small>{}</small>", figure_html(interval)));
  }
  const std::string numerics =
      change.numerics.empty() ? "Numerics: not checked" : "Numerics: " + html_text(change.numerics);
  return fmt::format(
      "<tr><th scope=\"row\">{}<span class=\"name\">{}</span><span class=\"detail\">{}</span>{}</th>"
      "<td class=\"gain {}\" data-label=\"Gain\">{}{}</td><td class=\"number pairs\" data-label=\"Pairs\">{}</td>"
      "<td>{}<span class=\"detail\">{}</span></td></tr>\n",
      tag_html(change.verdict), html_text(change.name), html_text(change.sentence), settings,
      is_known_verdict ? change.verdict : "", gain, interval_svg(change, range), change.pairs,
      or_unavailable(html_text(change.reason)), numerics);
}

std::string changes_table(const Report& report, bool kept) {
  const GainRange range = gain_range(report.changes);
  std::string rows;
  for (const Report::Change& change : report.changes) {
    if ((change.verdict == "kept") == kept) rows += change_row(change, range);
  }
  if (rows.empty()) return {};
  return fmt::format(
      "<h3>{}</h3>\n<table class=\"changes stack\"><thead><tr><th scope=\"col\" class=\"what\">Change</th><th "
      "scope=\"col\" "
      "class=\"gain\">Gain, 95 % interval</th><th scope=\"col\" class=\"number pairs\">Pairs</th><th "
      "scope=\"col\">Why, "
      "and numerics</th></tr></thead><tbody>\n{}</tbody></table>\n",
      kept ? "Kept" : "Tried and not kept", rows);
}

std::string not_tried_html(const Report& report) {
  if (report.not_tried.empty()) return {};
  std::string html = "<h3>Not tried</h3>\n<ul>\n";
  for (const Report::NotTried& change : report.not_tried) {
    html += fmt::format("<li>{} (<code>{}</code>): {}.</li>\n", html_text(change.name), html_text(change.key),
                        html_text(change.reason));
  }
  return html + "</ul>\n";
}

}  // namespace

std::string gains_html(const Report& report) {
  return waterfall_html(report) + speedup_pairs_html(report);
}

std::string changes_html(const Report& report) {
  std::string html = section_opening("changes", "What was tried");
  if (report.changes.empty()) {
    return html + "<p>No change was tried.</p>\n" + not_tried_html(report) + "</section>\n";
  }
  html += fmt::format(
      "<p>{} The mark below each gain shows its interval, and the dots, where there are any, its single pairs; the "
      "upright line is no gain at all.</p>\n",
      pairs_text(report));
  return html + changes_table(report, true) + changes_table(report, false) + not_tried_html(report) + "</section>\n";
}

}  // namespace headrace::detail
