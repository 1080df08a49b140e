#include "insight/diagnose/detail/trace_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "insight/diagnose/detail/charts.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/loading_report.h"
#include "insight/diagnose/detail/series.h"
#include "insight/diagnose/detail/spans.h"
#include "insight/diagnose/detail/svg.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/detail/trace_charts.h"

namespace headrace {
namespace detail {
namespace {

using Traced = Report::Traced;

constexpr std::size_t kSpansShown = 25;

std::string label_heading(const Report& report, const Traced& traced) {
  if (report.traces.size() < 2) return {};
  return fmt::format("<h3>{}</h3>\n", html_text(traced.label));
}

std::string paragraph(const std::string& text) {
  return text.empty() ? "" : fmt::format("<p>{}</p>\n", html_text(text));
}

std::string statistics_head(const char* name, bool has_total) {
  std::string html = "<thead><tr>" + column_html(name) + column_html("Times", "number");
  if (has_total) html += column_html("In all", "number");
  for (const char* column : {"Mean", "p50", "p95", "p99", "Longest"}) html += column_html(column, "number");
  return html + "</tr></thead>";
}

std::string statistics_row(const SpanStatistics& known, const std::string& name, bool has_total) {
  std::string html = fmt::format("<tr><th scope=\"row\">{}</th><td class=\"number\" data-label=\"Times\">{}</td>", name,
                                 count_text(known.count));
  if (has_total) {
    html += fmt::format("<td class=\"number\" data-label=\"In all\">{}</td>", time_text(known.total_s));
  }
  const std::pair<const char*, double> columns[] = {{"Mean", known.mean_s},
                                                    {"p50", known.p50_s},
                                                    {"p95", known.p95_s},
                                                    {"p99", known.p99_s},
                                                    {"Longest", known.max_s}};
  for (const auto& [label, seconds] : columns) {
    html += fmt::format("<td class=\"number\" data-label=\"{}\">{}</td>", label, time_text(seconds));
  }
  return html + "</tr>\n";
}

std::string steps_chart(const Traced& traced, std::size_t place) {
  Report::Curve curve{"Each step, in its order", "ms", {}, {}};
  for (std::size_t i = 0; i < traced.split.step_s.size(); ++i) {
    curve.x.push_back(static_cast<double>(i + 1));
    curve.y.push_back(1e3 * traced.split.step_s[i]);
  }
  return curve_svg(thinned(curve, kCurvePointsMax), fmt::format("steps-{}", place)) + "\n";
}

std::string percentiles_html(const Report& report) {
  std::string html = section_opening("steps", "How long steps take");
  for (std::size_t i = 0; i < report.traces.size(); ++i) {
    const Traced& traced = report.traces[i];
    html += label_heading(report, traced) + paragraph(percentiles_text(traced)) + "<figure>\n";
    if (traced.split.step_s.size() > 1) html += steps_chart(traced, i);
    html += "<table class=\"statistics stack\">" + statistics_head("Part", false) + "<tbody>\n";
    for (const SpanStatistics& part : step_statistics(traced.split)) {
      html += statistics_row(part, part.name, false);
    }
    html += "</tbody></table></figure>\n";
  }
  return html + "</section>\n";
}

std::string waterfall_table(const StepWaterfall& waterfall) {
  std::string html =
      table_opening(column_html("Span") + column_html("Thread") + column_html("Begins", "number") +
                    column_html("Ends", "number") + column_html("Times", "number") + column_html("In all", "number"));
  for (const StepWaterfall::Row& row : waterfall.rows) {
    html += fmt::format(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td class=\"number\">{}</td><td class=\"number\">{}</td><td "
        "class=\"number\">{}</td><td class=\"number\">{}</td></tr>\n",
        name_html(row.name), name_html(row.thread), time_text(row.bars.front().begin_s),
        time_text(row.bars.back().end_s), count_text(row.calls), time_text(row.total_s));
  }
  return html + kTableEnd;
}

std::string waterfalls_html(const Report& report) {
  std::string html = section_opening("step", "One step over time");
  for (std::size_t i = 0; i < report.traces.size(); ++i) {
    const Traced& traced = report.traces[i];
    const StepWaterfall& waterfall = traced.waterfall;
    html += label_heading(report, traced);
    html += paragraph(waterfall_text(waterfall) +
                      (i == 0 ? " Each line is one name on one thread, with a bar wherever it ran; what another one "
                                "encloses is moved to the right."
                              : ""));
    if (waterfall.rows.empty()) {
      html += "<p>Nothing was recorded within it.</p>\n";
      continue;
    }
    html += "<figure>\n" + waterfall_svg(waterfall, fmt::format("step-{}", i)) + waterfall_table(waterfall) +
            "</figure>\n" + paragraph(left_out_text(waterfall));
  }
  return html + "</section>\n";
}

std::string spans_table(const ProfileSummary& spans) {
  const std::size_t shown = std::min(spans.operations.size(), kSpansShown);
  std::string html = "<details><summary>The longest spans by name</summary><table class=\"statistics stack\">" +
                     statistics_head("Span", true) + "<tbody>\n";
  for (std::size_t i = 0; i < shown; ++i) {
    html += statistics_row(spans.operations[i], name_html(spans.operations[i].name), true);
  }
  html += kTableEnd;
  if (shown == spans.operations.size()) return html;
  return html + fmt::format("<p>{} of {} names, those with the most time.</p>\n", shown, spans.operations.size());
}

std::string flame_html(const Traced& traced, std::size_t place) {
  const std::vector<std::span<const FlameGraph::Frame>> threads = threads_of(traced.flame);
  std::string html;
  for (std::size_t i = 0; i < threads.size(); ++i) {
    const FlameGraph::Frame& thread = threads[i].front();
    const std::string title =
        fmt::format("{}: {} in spans", name_html(thread.name), time_text(seconds(thread.total_ns)));
    const std::string svg = flame_svg(threads[i], fmt::format("flame-{}-{}", place, i));
    html += i == 0 ? fmt::format("<figure>\n<p>{}</p>\n{}</figure>\n", title, svg)
                   : fmt::format("<details><summary>{}</summary>\n{}</details>\n", title, svg);
  }
  return html + spans_table(traced.spans) + paragraph(left_out_text(traced.flame)) + paragraph(dropped_text(traced));
}

std::string flames_html(const Report& report) {
  std::string html = section_opening("flame", "Flame graph") +
                     paragraph(
                         "Where the time of each thread went, over all that was recorded: a thread on top, and below "
                         "each span those that ran within it. Width is time; from left to right there is none, as "
                         "equal stacks are added up.");
  for (std::size_t i = 0; i < report.traces.size(); ++i) {
    html += label_heading(report, report.traces[i]) + flame_html(report.traces[i], i);
  }
  return html + "</section>\n";
}

}  // namespace

std::string traces_html(const Report& report) {
  if (!report.traces.empty()) return percentiles_html(report) + waterfalls_html(report) + flames_html(report);
  if (!says_no_traces(report)) return {};
  return section_opening("steps", "How long steps take") +
         "<p>Unavailable, as are one step over time and the flame graph: no steps were recorded.</p>\n</section>\n";
}

std::vector<SpanStatistics> step_statistics(const TimeSplit& split) {
  using Parts = TimeSplit::Parts;
  static constexpr std::pair<const char*, double Parts::*> kParts[] = {{"data wait", &Parts::data_wait_s},
                                                                       {"transfer", &Parts::transfer_s},
                                                                       {"forward", &Parts::forward_s},
                                                                       {"backward", &Parts::backward_s},
                                                                       {"optimizer", &Parts::optimizer_s}};
  std::vector<SpanStatistics> rows;
  if (split.step_s.empty()) return rows;
  rows.push_back(duration_statistics("step", split.step_s));
  for (const auto& [name, member] : kParts) {
    std::vector<double> seconds;
    for (const Parts& parts : split.parts) seconds.push_back(parts.*member);
    if (std::any_of(seconds.begin(), seconds.end(), [](double s) { return s > 0; })) {
      rows.push_back(duration_statistics(name, std::move(seconds)));
    }
  }
  return rows;
}

std::string percentiles_text(const Traced& traced) {
  const std::vector<SpanStatistics> rows = step_statistics(traced.split);
  if (rows.empty()) return "Of these steps the sums alone are known.";
  const SpanStatistics& step = rows.front();
  return fmt::format("{} {}: half of them take at most {}, 5 in 100 more than {}, 1 in 100 more than {}.",
                     count_text(step.count), step.count == 1 ? "step" : "steps", time_text(step.p50_s),
                     time_text(step.p95_s), time_text(step.p99_s));
}

std::string waterfall_text(const StepWaterfall& waterfall) {
  return fmt::format("Step {} of {}, the one of the middle duration, takes {}.", waterfall.step, waterfall.steps,
                     time_text(waterfall.length_s));
}

std::string left_out_text(const StepWaterfall& waterfall) {
  if (waterfall.rows_left_out == 0) return {};
  return fmt::format("{} further names took less time and are left out.", count_text(waterfall.rows_left_out));
}

std::string left_out_text(const FlameGraph& graph) {
  std::string text;
  if (graph.frames_left_out > 0) {
    text = fmt::format("{} stacks are too short to be seen, or too deep, and are left out.",
                       count_text(graph.frames_left_out));
  }
  if (graph.threads_left_out > 0) {
    text += fmt::format("{}{} threads with less time are left out.", text.empty() ? "" : " ",
                        count_text(graph.threads_left_out));
  }
  return text;
}

std::string dropped_text(const Traced& traced) {
  if (traced.dropped == 0) return {};
  return fmt::format("{} events are missing: full buffers lost the oldest.", count_text(traced.dropped));
}

bool says_no_traces(const Report& report) {
  return report.traces.empty() && report.kind != Report::Kind::training && !report.live;
}

}  // namespace detail

void show_trace(Report& report, const TraceRecord& record, const std::string& label, std::int64_t skip) {
  Report::Traced traced;
  traced.label = label;
  traced.split = split_time(record, skip);
  traced.waterfall = step_waterfall(record, skip);
  traced.flame = flame_graph(record);
  traced.spans = get_profile_summary(record);
  traced.dropped = record.dropped;
  report.traces.push_back(std::move(traced));
}

}  // namespace headrace
