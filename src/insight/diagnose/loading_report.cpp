#include "insight/diagnose/detail/loading_report.h"

#include <fmt/format.h>

#include <cmath>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/html.h"
#include "insight/diagnose/detail/svg.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {
namespace {

std::string stage_row(const Report::Stage& stage) {
  return fmt::format(
      "<tr><th scope=\"row\">{}{}</th><td class=\"number\" data-label=\"Samples\">{}</td><td class=\"number\" "
      "data-label=\"Busy\">{}</td><td class=\"number\" data-label=\"Waits\">{}</td><td class=\"number\" "
      "data-label=\"Bytes\">{}</td></tr>\n",
      html_text(stage.name), stage.limits ? " <b>limits the rate</b>" : "", count_text(stage.records),
      seconds_text(stage.busy_s), html_text(waits_text(stage)), bytes_text(stage.bytes));
}

std::string decision_row(const Report::Decision& decision) {
  return fmt::format(
      "<tr><th scope=\"row\"><code>{}</code> {} \u2192 {}<span class=\"detail\">{}</span></th><td class=\"number\" "
      "data-label=\"At batch\">{}</td><td class=\"number\" data-label=\"Rate before\">{}</td><td class=\"number\" "
      "data-label=\"Rate after\">{}</td><td data-label=\"Outcome\">{}</td></tr>\n",
      html_text(decision.what), html_text(decision.from), html_text(decision.to), html_text(decision.why),
      count_text(decision.batch), rate_text(decision.before), decision.after ? rate_text(*decision.after) : "",
      outcome_text(decision));
}

std::string mean_bytes_text(double bytes) {
  return bytes_text(std::llround(bytes));
}

// A row of three cells after its name.
std::string pass_row(const Report::Pass& pass) {
  return fmt::format(
      "<tr><th scope=\"row\">{}</th><td class=\"number\" data-label=\"Samples\">{}</td><td class=\"number\" "
      "data-label=\"Reads\">{}</td><td class=\"number\" data-label=\"Writes\">{}</td></tr>\n",
      html_text(pass.name), count_text(pass.samples), mean_bytes_text(pass.bytes_in), mean_bytes_text(pass.bytes_out));
}

std::string plan_html(const Report::LoadingPlan& plan) {
  std::string html =
      "<h3>The passes over a sample</h3>\n<table class=\"passes stack\"><thead><tr><th scope=\"col\">Pass</th><th "
      "scope=\"col\" class=\"number\">Samples</th><th scope=\"col\" class=\"number\">Reads</th><th scope=\"col\" "
      "class=\"number\">Writes</th></tr></thead><tbody>\n";
  for (const Report::Pass& pass : plan.passes) html += pass_row(pass);
  html += fmt::format("</tbody></table>\n<p>{}</p>\n", html_text(plan_text(plan)));
  if (plan.transforms.empty()) return html;
  html += "<h3>The operations on an image</h3>\n<ul>\n";
  for (const Report::TransformStep& step : plan.transforms) {
    html += fmt::format("<li>{}</li>\n", html_text(transform_text(step)));
  }
  return html + "</ul>\n";
}

std::string advice_html(const LoadingAdvice& advice) {
  std::string html = fmt::format("<p>{}</p>\n", html_text(costs_text(advice.costs)));
  if (advice.proposals.empty()) return html;
  html += "<h3>Proposals</h3>\n<ul>\n";
  for (const Proposal& proposal : advice.proposals) {
    html += fmt::format("<li>{}</li>\n", html_text(proposal_text(proposal)));
  }
  return html + "</ul>\n";
}

double hit_rate(const Report::Cache& cache) {
  return static_cast<double>(cache.hits) / static_cast<double>(cache.hits + cache.misses);
}

std::string cache_svg(const Report::Cache& cache) {
  const std::string hits = count_text(cache.hits), misses = count_text(cache.misses);
  const double found = 100 * hit_rate(cache);
  return svg_opening("cache", "cache-chart", 54, "Samples found in the cache",
                     fmt::format("{} found, {} looked for in vain.", hits, misses)) +
         fmt::format(
             "<text x=\"0\" y=\"14\">found: {0}</text><text class=\"figure\" x=\"100%\" y=\"14\">not found: {1}</text>"
             "<rect class=\"part found\" x=\"0\" y=\"22\" width=\"{2:.2f}%\" height=\"26\"/><rect class=\"part "
             "missed\" x=\"{2:.2f}%\" y=\"22\" width=\"{3:.2f}%\" height=\"26\"/></svg>\n",
             hits, misses, found, 100 - found);
}

}  // namespace

std::string costs_text(const LoadingCosts& costs) {
  const double all = costs.sample_s();
  if (!(all > 0)) return "What a sample costs is unavailable.";
  return fmt::format(
      "A sample costs the loader {}: read {}, decode {}, augment {}, collate {}; copy to the device: {}.",
      milliseconds_text(all), percent_text(costs.read_s / all), percent_text(costs.decode_s / all),
      percent_text(costs.augment_s / all), percent_text(costs.collate_s / all),
      costs.copy_s ? milliseconds_text(*costs.copy_s) : kUnavailable);
}

std::string plan_text(const Report::LoadingPlan& plan) {
  const std::string now =
      fmt::format("{} copied and {} touched for a sample", mean_bytes_text(plan.copied), mean_bytes_text(plan.touched));
  if (plan.stages == 0) return now + ".";
  return fmt::format("{}; as {} passes, one for each stage, it would be {} and {}.", now, plan.stages,
                     mean_bytes_text(plan.copied_by_stages), mean_bytes_text(plan.touched_by_stages));
}

std::string transform_text(const Report::TransformStep& step) {
  const std::string why = step.why.empty() ? "" : fmt::format(" ({})", step.why);
  return fmt::format("{}: {}{}", fmt::join(step.operations, ", "), step.fused ? "one pass" : "by itself", why);
}

std::string proposal_text(const Proposal& proposal) {
  const std::string setting = proposal.setting.empty() ? "" : fmt::format(" ({})", proposal.setting);
  return fmt::format("{}{}: {}{}", proposal.name, setting,
                     proposal.applicable ? "" : "not applicable: ", proposal.reason);
}

std::string count_text(std::int64_t count) {
  return count < 1000 ? std::to_string(count) : grouped(static_cast<double>(count));
}

std::string latency_text(const Report& report) {
  if (!report.latency) return "How long a batch takes to come when it is asked for is unavailable.";
  return fmt::format(
      "Half of the batches came {} or more after they were asked for, 5 in 100 {} or more, 1 in 100 {} or more.",
      time_text(report.latency->p50_s), time_text(report.latency->p95_s), time_text(report.latency->p99_s));
}

std::string waits_text(const Report::Stage& stage) {
  std::string text;
  if (stage.wait_for_input_s > 0) text = seconds_text(stage.wait_for_input_s) + " for input";
  if (stage.wait_for_output_s > 0) {
    text += (text.empty() ? "" : ", ") + seconds_text(stage.wait_for_output_s) + " for room";
  }
  return text;
}

const char* outcome_text(const Report::Decision& decision) {
  return decision.rolled_back ? "rolled back" : decision.after ? "kept" : "not measured";
}

std::string cache_text(const Report& report) {
  if (!report.cache) {
    return "Unavailable: only the loader of headrace counts a cache of samples, and none was part of this; a cache of "
           "computed results is not built yet.";
  }
  const Report::Cache& cache = *report.cache;
  const std::string kind =
      cache.kind == "none" ? "No sample is kept in memory" : fmt::format("Samples are kept {}", cache.kind);
  std::string why = cache.reason.empty() ? "" : ": " + cache.reason;
  if (why.ends_with('.')) why.pop_back();
  const std::int64_t looked_for = cache.hits + cache.misses;
  if (looked_for == 0) return fmt::format("{}{}. None was looked for in a cache.", kind, why);
  return fmt::format("{}{}. {} of {} samples were found there, {}; it held {} at the end.", kind, why,
                     count_text(cache.hits), count_text(looked_for), percent_text(hit_rate(cache)),
                     bytes_text(cache.bytes));
}

std::string cache_html(const Report& report) {
  if (report.live && !report.cache) return {};
  const std::string html =
      section_opening("cache", "Cache") + fmt::format("<p>{}</p>\n", html_text(cache_text(report)));
  if (!report.cache || report.cache->hits + report.cache->misses == 0) return html + "</section>\n";
  return html + "<figure>\n" + cache_svg(*report.cache) + "</figure>\n</section>\n";
}

std::string loading_html(const Report& report) {
  if (report.stages.empty()) return {};
  std::string html = section_opening("loading", "Loading") +
                     "<p>Seconds of all threads added up, training data.</p>\n"
                     "<table class=\"loading stack\"><thead><tr><th scope=\"col\">Stage</th><th scope=\"col\" "
                     "class=\"number\">Samples</th><th scope=\"col\" class=\"number\">Busy</th><th scope=\"col\" "
                     "class=\"number\">Waits</th><th scope=\"col\" class=\"number\">Bytes</th></tr></thead><tbody>\n";
  for (const Report::Stage& stage : report.stages) html += stage_row(stage);
  html += fmt::format("</tbody></table>\n<p>{}</p>\n", latency_text(report));
  if (!report.decisions.empty()) {
    html +=
        "<h3>What the loader changed by itself</h3>\n<table class=\"decisions stack\"><thead><tr><th "
        "scope=\"col\">Change</th><th scope=\"col\" class=\"number\">At batch</th><th scope=\"col\" "
        "class=\"number\">Rate before</th><th scope=\"col\" class=\"number\">Rate after</th><th "
        "scope=\"col\">Outcome</th></tr></thead><tbody>\n";
    for (const Report::Decision& decision : report.decisions) html += decision_row(decision);
    html += "</tbody></table>\n";
  }
  if (report.loading_plan) html += plan_html(*report.loading_plan);
  if (report.loading_advice) html += advice_html(*report.loading_advice);
  return html + "</section>\n";
}

}  // namespace headrace::detail
