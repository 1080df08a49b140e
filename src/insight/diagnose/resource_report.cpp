#include "insight/diagnose/detail/resource_report.h"

#include <fmt/format.h>

#include <vector>

#include "insight/diagnose/detail/charts.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {
namespace {

// What a chart of intervals needs of a loss.
Report::Change gain_of(const ResourceLoss& loss) {
  Report::Change change;
  change.gain = loss.gain;
  change.gain_low = loss.gain_low;
  change.gain_high = loss.gain_high;
  return change;
}

std::string confidence_text(double confidence, bool confirmed) {
  return fmt::format("{} sure, {}", percent_text(confidence),
                     confirmed ? "confirmed by a run without it" : "not confirmed by a run without it");
}

std::string loss_row(const ResourceLoss& loss, const GainRange& range) {
  std::string keys;
  for (const std::string& key : loss.keys) keys += fmt::format(" <code>{}</code>", html_text(key));
  const Report::Change gain = gain_of(loss);
  return fmt::format(
      "<tr><th scope=\"row\"><span class=\"name\">{}</span><span class=\"detail\">{} of a step</span></th><td "
      "class=\"gain\" data-label=\"Gain without it\"><b>{}</b> <small>{}</small>{}</td><td>{}<span "
      "class=\"detail\">{}{}</span><span class=\"detail\">{}</span></td></tr>\n",
      html_text(to_string(loss.resource)), time_text(loss.lost_s), figure_html(gain_text(loss.gain)),
      figure_html(interval_text(loss.gain_low, loss.gain_high)), interval_svg(gain, range), html_text(loss.evidence),
      html_text(loss.advice), keys, html_text(confidence_text(loss.confidence, loss.confirmed)));
}

// Empty: unavailable, or in the verdict's sentence.
std::string peak_text(const ResourceVerdict& verdict) {
  if (!verdict.peak_share || verdict.healthy) return {};
  return fmt::format("Forward and backward reach at least {} of this machine's measured peak.",
                     percent_text(*verdict.peak_share));
}

std::string unavailable_html(const ResourceVerdict& verdict) {
  if (verdict.unavailable.empty()) return {};
  std::string html = "<h3>What could not be judged</h3>\n<ul>\n";
  for (const std::string& sentence : verdict.unavailable) html += fmt::format("<li>{}</li>\n", html_text(sentence));
  return html + "</ul>\n";
}

}  // namespace

std::string resources_html(const Report& report) {
  if (!report.resources) return {};
  const ResourceVerdict& verdict = *report.resources;
  std::string html = section_opening("resources", "What runs out first");
  html += fmt::format("<p>{}</p>\n", html_text(verdict.sentence));
  if (!verdict.to_confirm.empty()) html += fmt::format("<p>{}</p>\n", html_text(verdict.to_confirm));
  if (const std::string peak = peak_text(verdict); !peak.empty()) html += fmt::format("<p>{}</p>\n", html_text(peak));
  if (verdict.losses.empty()) return html + unavailable_html(verdict) + "</section>\n";
  std::vector<Report::Change> gains;
  for (const ResourceLoss& loss : verdict.losses) gains.push_back(gain_of(loss));
  const GainRange range = gain_range(gains);
  html += "<table class=\"changes stack\"><thead><tr>" + column_html("Resource", "what") +
          column_html("Gain without it, 95 % interval", "gain") + column_html("Seen, and what to do") +
          "</tr></thead><tbody>\n";
  for (const ResourceLoss& loss : verdict.losses) html += loss_row(loss, range);
  return html + "</tbody></table>\n" + unavailable_html(verdict) + "</section>\n";
}

void write_resources(TextPage& page, const Report& report) {
  if (!report.resources) return;
  const ResourceVerdict& verdict = *report.resources;
  page.heading("What runs out first");
  page.paragraph(verdict.sentence, 2);
  if (!verdict.to_confirm.empty()) page.paragraph(verdict.to_confirm, 2);
  if (const std::string peak = peak_text(verdict); !peak.empty()) page.paragraph(peak, 2);
  for (const ResourceLoss& loss : verdict.losses) {
    page.paragraph(
        fmt::format("{}: {} of a step; without it {} {}; {}", to_string(loss.resource), time_text(loss.lost_s),
                    gain_text(loss.gain), interval_text(loss.gain_low, loss.gain_high),
                    confidence_text(loss.confidence, loss.confirmed)),
        4, Ink::plain, "  - ");
    page.paragraph(loss.evidence + ". " + loss.advice, 4, Ink::faint);
  }
  for (const std::string& sentence : verdict.unavailable) page.paragraph(sentence, 4, Ink::faint, "  ? ");
}

}  // namespace headrace::detail
