#include <fmt/format.h>
#include <headrace/diagnosis.h>
#include <headrace/loading_advice.h>
#include <headrace/report.h>
#include <headrace/time_split.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "insight/diagnose/detail/class_report.h"
#include "insight/diagnose/detail/course_report.h"
#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/loading_report.h"
#include "insight/diagnose/detail/memory_shares.h"
#include "insight/diagnose/detail/next_steps.h"
#include "insight/diagnose/detail/resource_report.h"
#include "insight/diagnose/detail/text.h"
#include "insight/diagnose/detail/text_page.h"
#include "insight/diagnose/detail/trace_text.h"

namespace headrace {
namespace {

using namespace detail;

struct Sign {
  const char* sign;
  Ink ink;
};

Sign sign_of(const std::string& verdict) {
  if (verdict == "kept") return {"+", Ink::good};
  if (verdict == "refused") return {"-", Ink::bad};
  if (verdict == "failed") return {"!", Ink::bad};
  return {"?", Ink::doubtful};
}

std::string accuracy_text(std::optional<double> accuracy, std::optional<double> loss) {
  if (!accuracy && !loss) return kUnavailable;
  std::string text;
  if (accuracy) text = "accuracy " + fixed_text(*accuracy, 4);
  if (loss) text += (text.empty() ? "loss " : ", loss ") + fixed_text(*loss, 4);
  return text;
}

void write_fact(TextPage& page, const Report& report, const std::string& name, const std::string& text) {
  if (!report.live || text != kUnavailable) page.fact(name, text);
}

void write_accuracies(TextPage& page, const Report& report) {
  if (report.val_accuracy) page.fact("val", accuracy_text(report.val_accuracy, report.val_loss));
  if (report.test_accuracy || !report.val_accuracy) {
    write_fact(page, report, "test", accuracy_text(report.test_accuracy, report.test_loss));
  }
  if (!report.choice.empty()) page.fact("result", report.choice);
}

void write_outcome(TextPage& page, const Report& report) {
  page.paragraph(report.title.empty() ? "untitled" : report.title, 0, Ink::faint);
  page.paragraph(report.verdict.empty() ? "No verdict." : report.verdict, 0, Ink::strong);
  if (!report.note.empty()) page.paragraph(report.note, 0, Ink::doubtful);
  page.line();
  if (report.kind != Report::Kind::tuning) {
    page.fact("speed", rate_text(report.baseline_samples_per_second));
    if (report.kind == Report::Kind::profile && report.diagnosis != report.verdict) {
      page.fact("diagnosis", report.diagnosis.empty() ? kUnavailable : report.diagnosis);
    }
    if (report.kind == Report::Kind::training) write_accuracies(page, report);
    return;
  }
  if (!report.disturbance.empty()) page.fact("machine", report.disturbance);
  write_fact(page, report, "before", rate_text(report.baseline_samples_per_second));
  write_fact(page, report, "after", rate_text(report.best_samples_per_second));
  write_fact(page, report, "speedup",
             report.speedup_pairs > 0
                 ? fmt::format("{} times as fast (95 % interval, {} pairs)", speedup_text(report), report.speedup_pairs)
                 : kUnavailable);
  write_accuracies(page, report);
  write_fact(page, report, "diagnosis", report.diagnosis.empty() ? kUnavailable : report.diagnosis);
  if (const std::string left_out = left_out_text(report); !left_out.empty()) {
    page.paragraph(left_out, 2, Ink::faint);
  }
}

void write_change(TextPage& page, const Report::Change& change) {
  constexpr int kVerdict = 14, kGain = 9, kInterval = 22, kPairs = 6;  // Columns.
  const Sign sign = sign_of(change.verdict);
  const std::string verdict = padded(std::string(sign.sign) + ' ' + clean_text(change.verdict), kVerdict);
  const int name_width = page.width() - 4 - kVerdict - kGain - kInterval - kPairs;
  const std::string name = clean_text(change.name);
  const std::string gain = change.gain ? gain_text(*change.gain) : "-";
  const std::string interval = interval_text(change.gain_low, change.gain_high);
  if (name_width >= 20 && columns(gain) < kGain && columns(interval) < kInterval) {
    page.line(fmt::format("  {}  {}{:>{}}{:>{}}{:>{}}", page.painted(verdict, sign.ink), padded(name, name_width), gain,
                          kGain, interval, kInterval, change.pairs, kPairs));
  } else {
    page.line(fmt::format("  {}  {}", page.painted(verdict, sign.ink), fitted(name, page.width() - 4 - kVerdict)));
    page.paragraph(fmt::format("gain {}, {} pairs", gain_text(change), change.pairs), 4);
  }
  page.paragraph(change.reason, 4, Ink::faint);
  if (!change.numerics.empty()) page.paragraph("numerics: " + change.numerics, 4, Ink::faint);
}

void write_changes(TextPage& page, const Report& report) {
  page.heading(report.live ? "Changes" : "Changes, in the order tried");
  if (report.changes.empty()) page.line("  None was tried.");
  if (report.live && !report.changes.empty()) page.paragraph(pairs_text(report), 2, Ink::faint);
  if (!report.changes.empty() && page.width() >= 75) {
    page.line(page.painted(fmt::format("  {:<16}{:<{}}{:>9}{:>22}{:>6}", "verdict", "change", page.width() - 55, "gain",
                                       "95 % interval", "pairs"),
                           Ink::faint));
  }
  for (const Report::Change& change : report.changes) write_change(page, change);
  if (report.not_tried.empty()) return;
  page.heading("Not tried");
  for (const Report::NotTried& change : report.not_tried) {
    page.paragraph(fmt::format("{} ({}): {}.", change.name, change.key, change.reason), 4, Ink::plain, "  - ");
  }
}

void write_part(TextPage& page, const char* when, const std::string& label, double seconds, double total,
                double scale) {
  const int width = page.width() - 40;             // None on the narrowest page.
  const char* block = when[0] == 'b' ? "░" : "█";  // Before, or after and now.
  page.line(fmt::format("  {:<11}{:<7}{:>10}{:>8}  {}", label, when, milliseconds_text(seconds),
                        total > 0 ? percent_text(seconds / total) : "", text_bar(seconds, scale, width, block)));
}

void write_split(TextPage& page, const Report& report) {
  if (report.live && !has_split(report)) return;
  page.heading("Where the time of a step goes");
  struct Side {
    const char* when;
    const TimeSplit* split;
  };
  std::vector<Side> sides;
  double scale = 0;
  const bool is_comparison = report.kind == Report::Kind::tuning && report.after;
  for (const Side& side : {Side{is_comparison ? "before" : "now", report.before ? &*report.before : nullptr},
                           Side{"after", report.after ? &*report.after : nullptr}}) {
    if (!is_comparison && side.when[0] == 'a') continue;
    if (side.split == nullptr || side.split->steps <= 0) {
      page.line(fmt::format("  {}: {}", side.when, kUnavailable));
      continue;
    }
    sides.push_back(side);
    scale = std::max(scale, side.split->total_s / static_cast<double>(side.split->steps));
  }
  if (sides.empty()) return;
  for (std::size_t row = 0; row < 7; ++row) {
    bool is_first = true;
    for (const Side& side : sides) {
      const double steps = static_cast<double>(side.split->steps);
      const NamedPart part = row == 0 ? NamedPart{"step", side.split->total_s} : named_parts(*side.split)[row - 1];
      write_part(page, side.when, std::exchange(is_first, false) ? part.name : "", part.seconds / steps,
                 side.split->total_s / steps, scale);
    }
  }
  if (const std::string note = split_note(report); !note.empty()) page.paragraph(note, 2, Ink::faint);
}

void write_loading(TextPage& page, const Report& report) {
  if (report.stages.empty()) return;
  page.heading("Loading");
  for (const Report::Stage& stage : report.stages) {
    const std::string waits = waits_text(stage), limits = stage.limits ? "; limits the rate" : "";
    page.paragraph(fmt::format("{} samples, busy {}, {}{}{}", count_text(stage.records), seconds_text(stage.busy_s),
                               bytes_text(stage.bytes), waits.empty() ? "" : "; waits " + waits, limits),
                   13, Ink::plain, "  " + padded(clean_text(stage.name), 11));
  }
  page.paragraph(latency_text(report), 2);
  for (const Report::Decision& decision : report.decisions) {
    page.paragraph(fmt::format("after batch {}: {} {} -> {} ({}): {}", decision.batch, decision.what, decision.from,
                               decision.to, outcome_text(decision), decision.why),
                   4, Ink::plain, "  - ");
  }
  if (report.loading_plan) {
    for (const Report::Pass& pass : report.loading_plan->passes) {
      page.paragraph(fmt::format("{}: {} samples, {} in, {} out", pass.name, count_text(pass.samples),
                                 bytes_text(std::llround(pass.bytes_in)), bytes_text(std::llround(pass.bytes_out))),
                     4, Ink::plain, "  > ");
    }
    page.paragraph(plan_text(*report.loading_plan), 2);
    for (const Report::TransformStep& step : report.loading_plan->transforms) {
      page.paragraph(transform_text(step), 4, Ink::plain, "  * ");
    }
  }
  if (report.loading_advice) {
    page.paragraph(costs_text(report.loading_advice->costs), 2);
    for (const Proposal& proposal : report.loading_advice->proposals) {
      page.paragraph(proposal_text(proposal), 4, Ink::plain, "  - ");
    }
  }
}

void write_cache(TextPage& page, const Report& report) {
  if (report.live && !report.cache) return;
  page.heading("Cache");
  page.paragraph(cache_text(report), 2);
}

void write_memory(TextPage& page, const Report& report) {
  const MemoryTimeline& timeline = report.memory;
  if (report.live && timeline.resident.empty()) return;
  page.heading("Memory");
  if (timeline.resident.empty()) return page.line(fmt::format("  {}", kUnavailable));
  const std::size_t peak = peak_index(timeline);
  page.paragraph(fmt::format("{} at most, {} into the {} that were watched; of these, and on average:",
                             bytes_text(timeline.resident[peak]), seconds_text(seconds_at(timeline, peak)),
                             seconds_text(seconds_at(timeline, timeline.resident.size() - 1))),
                 2);
  const int width = page.width() - 40;
  for (const MemoryShare& share : memory_shares(timeline)) {
    const std::string name = padded(clean_text(share.name), 14);
    if (!share.is_known) {
      page.line(fmt::format("  {}{:>11}", name, kUnavailable));
      continue;
    }
    page.line(fmt::format(
        "  {}{:>11}{:>11}  {}", name, bytes_text(share.at_peak), bytes_text(share.mean),
        text_bar(static_cast<double>(share.at_peak), static_cast<double>(timeline.resident[peak]), width, "█")));
  }
}

void write_next(TextPage& page, const Report& report) {
  page.heading("What to look at next");
  const std::vector<Finding> steps = next_steps(report);
  if (steps.empty()) page.line("  Nothing stands out.");
  for (const Finding& step : steps) page.paragraph(step.sentence + ' ' + step.advice, 4, Ink::plain, "  - ");
}

}  // namespace

std::string report_text(const Report& report, int width, bool colour) {
  TextPage page(width, colour);
  write_outcome(page, report);
  if (report.kind == Report::Kind::tuning) {
    write_changes(page, report);
    write_course(page, report);
  }
  if (report.kind != Report::Kind::training) write_split(page, report);
  write_resources(page, report);
  write_traces(page, report);
  write_loading(page, report);
  write_cache(page, report);
  write_memory(page, report);
  write_classes(page, report);
  write_next(page, report);
  return page.take();
}

}  // namespace headrace
