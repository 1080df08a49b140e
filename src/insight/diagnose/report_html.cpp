#include <fmt/format.h>
#include <headrace/diagnosis.h>
#include <headrace/report.h>
#include <headrace/time_split.h>

#include <algorithm>
#include <cmath>

#include "core/base/fail.h"
#include "insight/diagnose/detail/changes_report.h"
#include "insight/diagnose/detail/charts.h"
#include "insight/diagnose/detail/class_report.h"
#include "insight/diagnose/detail/course_report.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/loading_report.h"
#include "insight/diagnose/detail/memory_shares.h"
#include "insight/diagnose/detail/next_steps.h"
#include "insight/diagnose/detail/report_page.h"
#include "insight/diagnose/detail/resource_report.h"
#include "insight/diagnose/detail/series.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/detail/trace_charts.h"
#include "insight/diagnose/detail/trace_report.h"
#include "insight/diagnose/detail/wall_report.h"

namespace headrace {
namespace {

using namespace detail;

std::string stat(const char* name, const std::string& value, const std::string& note, bool is_key = false) {
  const bool is_known = !value.empty() && value != kUnavailable;
  return fmt::format("<div{}><dt>{}</dt><dd><span class=\"value{}\">{}</span>{}</dd></div>\n",
                     is_key ? " class=\"key\"" : "", name, is_known ? "" : " unavailable",
                     is_known ? value : kUnavailable,
                     is_known && !note.empty() ? fmt::format("<span class=\"note\">{}</span>", note) : "");
}

std::string rate_stat(const char* name, double samples_per_second) {
  return stat(name, is_measured(samples_per_second) ? grouped(samples_per_second) : "", "samples per second");
}

std::string memory_stat(const Report& report) {
  const std::vector<std::int64_t>& resident = report.memory.resident;
  return stat("Memory", resident.empty() ? "" : bytes_text(*std::max_element(resident.begin(), resident.end())),
              "resident, at most");
}

std::string accuracy_stat(const std::string& split, std::optional<double> accuracy, std::optional<double> loss) {
  std::string html = stat((split + " accuracy").c_str(), accuracy ? fixed_text(*accuracy, 4) : "",
                          loss ? "loss " + fixed_text(*loss, 4) : "");
  if (!accuracy && loss) html += stat((split + " loss").c_str(), fixed_text(*loss, 4), "");
  return html;
}

// Of a tuning.
std::string speed_stats(const Report& report) {
  std::string html;
  if (!report.live || is_measured(report.baseline_samples_per_second)) {
    html += rate_stat("Before", report.baseline_samples_per_second);
  }
  if (!report.live || is_measured(report.best_samples_per_second)) {
    html += rate_stat("After", report.best_samples_per_second);
  }
  const bool has_speedup = report.speedup_pairs > 0;
  if (report.live && !has_speedup) return html;
  return html + stat("Speedup", has_speedup ? fixed_text(report.speedup, 2) + " \u00d7" : "",
                     fmt::format("{} to {} (95\u00a0%), {} pairs", fixed_text(report.speedup_low, 2),
                                 fixed_text(report.speedup_high, 2), report.speedup_pairs),
                     true);
}

std::string accuracy_stats(const Report& report) {
  std::string html;
  if (report.val_accuracy) html += accuracy_stat("Val", report.val_accuracy, report.val_loss);
  if (report.test_accuracy || (!report.val_accuracy && (report.test_loss || !report.live))) {
    html += accuracy_stat("Test", report.test_accuracy, report.test_loss);
  }
  return html;
}

std::string header_html(const Report& report) {
  const std::string verdict = report.verdict.empty() ? "No verdict" : html_text(report.verdict);
  std::string html = fmt::format("<header>\n<p class=\"eyebrow\">Headrace report on <b>{}</b></p>\n<h1>{}</h1>\n",
                                 report.title.empty() ? "an untitled job" : html_text(report.title), verdict);
  if (!report.disturbance.empty()) html += fmt::format("<p class=\"lede\">{}</p>\n", html_text(report.disturbance));
  // A profile's verdict may be its diagnosis, a training has none.
  if (report.kind == Report::Kind::tuning && !(report.live && report.diagnosis.empty())) {
    html += fmt::format("<p class=\"lede\">Diagnosis: {}</p>\n", or_unavailable(html_text(report.diagnosis)));
  }
  if (!report.note.empty()) html += fmt::format("<p class=\"lede\">{}</p>\n", html_text(report.note));
  if (report.kind == Report::Kind::profile && report.diagnosis != report.verdict) {
    html += fmt::format("<p class=\"lede\">Diagnosis: {}</p>\n", or_unavailable(html_text(report.diagnosis)));
  }
  if (!report.choice.empty()) html += fmt::format("<p class=\"lede\">{}</p>\n", html_text(report.choice));
  std::string stats = report.kind == Report::Kind::tuning ? speed_stats(report)
                                                          : rate_stat("Speed", report.baseline_samples_per_second);
  if (report.kind != Report::Kind::profile) stats += accuracy_stats(report);
  if (report.kind != Report::Kind::tuning) stats += memory_stat(report);
  if (!stats.empty()) html += "<dl class=\"stats\">\n" + stats + "</dl>\n";
  if (const std::string left_out = left_out_text(report); !left_out.empty()) {
    html += fmt::format("<p class=\"lede\">{}</p>\n", html_text(left_out));
  }
  return html + "</header>\n";
}

std::string split_table(const std::vector<LabelledSplit>& splits) {
  std::string html = "<table class=\"split-table\"><thead><tr><th scope=\"col\">Part of a step</th>";
  for (const LabelledSplit& side : splits) {
    html += fmt::format("<th scope=\"col\" class=\"number\">{}, share</th>", side.label);
  }
  html += "</tr></thead><tbody>\n";
  for (std::size_t part = 0; part < 6; ++part) {
    html += fmt::format("<tr><th scope=\"row\">{}{}</th>", swatch_svg(part), named_parts(*splits[0].split)[part].name);
    for (const LabelledSplit& side : splits) {
      const double seconds = named_parts(*side.split)[part].seconds;
      html += fmt::format("<td class=\"number\">{} <small>{}</small></td>",
                          milliseconds_text(seconds / static_cast<double>(side.split->steps)),
                          percent_text(seconds / side.split->total_s));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table>\n";
}

std::string split_html(const Report& report) {
  if (report.live && !has_split(report)) return {};
  std::string html = section_opening("split", "Where the time of a step goes");
  std::vector<LabelledSplit> splits;
  const auto add = [&](const char* label, const std::optional<TimeSplit>& split) {
    if (split && split->steps > 0 && split->total_s > 0) {
      splits.push_back({label, &*split});
    } else {
      html += fmt::format("<p>{}: unavailable.</p>\n", label);
    }
  };
  const bool is_comparison = report.kind == Report::Kind::tuning && report.after;
  add(is_comparison ? "Before" : "Now", report.before);
  if (is_comparison) add("After", report.after);
  if (splits.empty()) return html + "</section>\n";
  const std::string note = split_note(report);
  html += fmt::format("<p>{}{}\u201cOther\u201d is the time that no part covers.</p>\n<figure>\n",
                      note.empty() ? "" : html_text(note) + " ", splits.size() > 1 ? "Both bars have one scale. " : "");
  return html + split_svg(splits) + split_table(splits) + "</figure>\n</section>\n";
}

std::string memory_table(const std::vector<MemoryShare>& shares) {
  std::string rows;
  // As the chart stacks them: the last one is on top.
  for (std::size_t i = shares.size(); i-- > 0;) {
    const MemoryShare& share = shares[i];
    rows += fmt::format("<tr><th scope=\"row\">{}{}</th>", share.is_known ? memory_swatch_svg(share) : "",
                        html_text(share.name));
    for (const std::int64_t value : {share.at_peak, share.mean, share.last}) {
      rows += fmt::format("<td class=\"number\">{}</td>", or_unavailable(share.is_known ? bytes_text(value) : ""));
    }
    rows += "</tr>\n";
  }
  return "<table class=\"memory-table\"><thead><tr><th scope=\"col\">Class</th><th scope=\"col\" "
         "class=\"number\">At the peak</th><th scope=\"col\" class=\"number\">On average</th><th scope=\"col\" "
         "class=\"number\">At the end</th></tr></thead><tbody>\n" +
         rows + "</tbody></table>\n";
}

std::string memory_html(const Report& report) {
  const MemoryTimeline& timeline = report.memory;
  if (report.live && timeline.resident.empty()) return {};
  std::string html = section_opening("memory", "Memory over time");
  if (timeline.resident.empty()) return html + "<p>Unavailable.</p>\n</section>\n";
  const std::size_t peak = peak_index(timeline);
  html += fmt::format(
      "<p>The process held at most {}, {} after the first reading. \u201cOther\u201d is what is resident and in none "
      "of the classes that were counted: libraries and their buffers, and all that nobody counted.</p>\n<figure>\n",
      bytes_text(timeline.resident[peak]), seconds_text(seconds_at(timeline, peak)));
  if (timeline.resident.size() > 1) html += memory_svg(timeline);
  return html + memory_table(memory_shares(timeline)) + "</figure>\n</section>\n";
}

std::string curve_table(const Report::Curve& whole) {
  const Report::Curve curve = thinned(whole, kTableRowsMax);
  const std::string unit = curve.unit.empty() ? "" : ", " + html_text(curve.unit);
  std::string html = table_opening(column_html("At", "number") + column_html(html_text(curve.name) + unit, "number"));
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{:.6g}", value) : "not finite"; };
  for (std::size_t i = 0; i < curve.x.size(); ++i) {
    html += fmt::format("<tr><td class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n", number(curve.x[i]),
                        number(curve.y[i]));
  }
  html += kTableEnd;
  if (curve.x.size() == whole.x.size()) return html;
  return html + fmt::format("<p>The table has {} of {} points: the least and the most of each share.</p>\n",
                            curve.x.size(), whole.x.size());
}

std::string curve_html(const Report::Curve& curve, const std::string& id) {
  if (curve.x.size() != curve.y.size()) {
    fail(ErrorCode::invalid_argument, "insight: curve {}: {} values of x, {} of y", curve.name, curve.x.size(),
         curve.y.size());
  }
  std::string html = fmt::format("<figure>\n<h3>{}</h3>\n", html_text(curve.name));
  if (!has_finite_point(curve)) return html + "<p class=\"unavailable\">No points were recorded.</p>\n</figure>\n";
  html += curve_svg(thinned(curve, kCurvePointsMax), id);
  return html + "\n" + curve_table(curve) + "</figure>\n";
}

std::string curves_html(const Report& report) {
  if (report.curves.empty()) return {};
  std::string html = section_opening("curves", "Over the training") + "<div class=\"curves\">\n";
  for (std::size_t i = 0; i < report.curves.size(); ++i) {
    html += curve_html(report.curves[i], fmt::format("curve-{}", i));
  }
  return html + "</div>\n</section>\n";
}

std::string next_html(const Report& report) {
  std::string html = section_opening("next", "What to look at next");
  const std::vector<Finding> steps = next_steps(report);
  if (steps.empty()) return html + "<p>Nothing stands out.</p>\n</section>\n";
  html += "<ul class=\"findings\">\n";
  for (const Finding& step : steps) {
    html += fmt::format("<li><b>{}</b><span>{}</span> <code>{}</code></li>\n", html_text(step.sentence),
                        html_text(step.advice), html_text(step.code));
  }
  return html + "</ul>\n</section>\n";
}

std::string settings_html(const Report& report) {
  std::string html = section_opening("settings", "Settings");
  if (report.settings.empty()) {
    return html + (report.live ? "<p>As they were written.</p>" : "<p>Unavailable.</p>") + "\n</section>\n";
  }
  html +=
      "<table class=\"settings stack\"><thead><tr><th scope=\"col\" class=\"key\">Setting</th><th scope=\"col\" "
      "class=\"asked\">Requested</th><th scope=\"col\">Applied</th></tr></thead><tbody>\n";
  for (const Applied& setting : report.settings) {
    const std::string note = setting.holds() && setting.reason.empty()
                                 ? ""
                                 : fmt::format("<span class=\"detail\"><span class=\"differs\">{}</span> {}</span>",
                                               setting.holds() ? "Note:" : "\u2260 Not as requested:",
                                               setting.reason.empty() ? "no reason given" : html_text(setting.reason));
    html += fmt::format(
        "<tr><th scope=\"row\"><code>{}</code></th><td data-label=\"Requested\"><code>{}</code></td><td "
        "data-label=\"Applied\"><code>{}</code>{}</td></tr>\n",
        html_text(setting.key), html_text(setting.requested), html_text(setting.applied), note);
  }
  return html + "</tbody></table>\n</section>\n";
}

}  // namespace

std::string report_html(const Report& report) {
  std::string html = header_html(report);
  html += part_patterns();
  if (report.kind == Report::Kind::tuning) html += gains_html(report) + changes_html(report) + course_html(report);
  if (report.kind != Report::Kind::training) html += split_html(report);
  html += resources_html(report);
  html += wall_html(report);
  html += traces_html(report);
  html += loading_html(report);
  html += cache_html(report);
  html += memory_html(report);
  html += curves_html(report);
  html += classes_html(report);
  html += next_html(report);
  html += settings_html(report);
  html += origin_html(report.command, report.environment);
  return page_html({.title = report.title.empty() ? "Headrace report" : report.title,
                    .verdict = report.verdict,
                    .is_positive = report.positive,
                    .written = report.written},
                   html);
}

}  // namespace headrace
