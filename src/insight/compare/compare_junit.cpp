#include <fmt/format.h>

#include "insight/compare/compare_report.h"
#include "insight/compare/detail/change_text.h"

namespace headrace {
namespace {

// XML 1.0 has no other control characters than these three; what is not UTF-8 was replaced where it came in.
std::string xml_text(const std::string& text) {
  std::string out;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\n':
      case '\r':
      case '\t':
        out += ' ';
        break;
      default:
        out += static_cast<unsigned char>(letter) < 0x20 ? '?' : letter;
    }
  }
  return out;
}

// The cases of a suite, and how many of them went how.
class Suite {
 public:
  explicit Suite(const std::string& arms) : arms_(xml_text(arms)) {}

  void passed(const std::string& name) { add(name, ""); }
  void failed(const std::string& name, const std::string& why) {
    ++failures_;
    add(name, fmt::format("<failure message=\"{}\"/>", xml_text(why)));
  }
  void skipped(const std::string& name, const std::string& why) {
    ++skipped_;
    add(name, fmt::format("<skipped message=\"{}\"/>", xml_text(why)));
  }
  void broken(const std::string& name, const std::string& why) {
    ++errors_;
    add(name, fmt::format("<error message=\"{}\"/>", xml_text(why)));
  }

  std::string text() const {
    return fmt::format(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"headrace compare\" tests=\"{}\" "
        "failures=\"{}\" errors=\"{}\" skipped=\"{}\">\n{}</testsuite>\n</testsuites>\n",
        tests_, failures_, errors_, skipped_, cases_);
  }

 private:
  void add(const std::string& name, const std::string& outcome) {
    ++tests_;
    cases_ += fmt::format("<testcase classname=\"{}\" name=\"{}\">{}</testcase>\n", arms_, xml_text(name), outcome);
  }

  std::string arms_, cases_;
  int tests_ = 0, failures_ = 0, errors_ = 0, skipped_ = 0;
};

void add_metric(const MetricVerdict& metric, Suite& suite) {
  const std::string why =
      fmt::format("{}: {}, {} to {}", change_text(metric), interval_text(metric.rule, metric.interval),
                  value_text(metric, metric.old_value), value_text(metric, metric.new_value));
  switch (metric.change) {
    case MetricChange::regressed:
    case MetricChange::missing:
      return suite.failed(metric.rule.name, why);
    case MetricChange::inconclusive:
      return suite.skipped(metric.rule.name, why);
    case MetricChange::improved:
    case MetricChange::equivalent:
      return suite.passed(metric.rule.name);
  }
}

}  // namespace

std::string compare_junit(const CompareReport& report) {
  Suite suite(fmt::format("{} to {}", report.old_label, report.new_label));
  for (const MetricVerdict& metric : report.verdict.metrics) add_metric(metric, suite);
  const std::string& wrong = report.verdict.wrong_outputs;
  if (!wrong.empty()) suite.failed("outputs", wrong);
  if (wrong.empty() && report.verdict.has_outputs) suite.passed("outputs");
  for (const MetricDrift& drift : report.drifts) {
    if (drift.is_failure()) suite.failed("history of " + drift.rule.name, drift_text(drift));
  }
  return suite.text();
}

std::string failed_junit(const std::string& old_label, const std::string& new_label, const std::string& reason) {
  Suite suite(fmt::format("{} to {}", old_label, new_label));
  suite.broken("comparison", reason);
  return suite.text();
}

}  // namespace headrace
