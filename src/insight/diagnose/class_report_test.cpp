#include "insight/diagnose/detail/class_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/report.h>

#include <string>

namespace headrace::detail {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;

Report of_classes() {
  Report report;
  report.kind = Report::Kind::training;
  report.classes_of = "test";
  report.classes = {
      {"cat", 100, 90, 95}, {"<dog>", 50, 20, 0}, {"none", 0, 0, 3}, {"cow", 200, 80, 90}, {"owl", 10, 10, 10}};
  return report;
}

TEST(ClassReport, ShowsTheWorstFirstAndNoneWithoutSamples) {
  const auto name = [](const char* wanted) { return Field(&Report::ClassFigures::name, wanted); };
  EXPECT_THAT(worst_classes(of_classes(), 10), ElementsAre(name("cow"), name("<dog>"), name("cat"), name("owl")));
  EXPECT_THAT(worst_classes(of_classes(), 1), ElementsAre(name("cow")));
}

TEST(ClassReport, IsATableWithEscapedNamesAndSaysWhatIsUnavailable) {
  const std::string html = report_html(of_classes());
  EXPECT_THAT(html, HasSubstr("In the split test, 4 of 5 classes, those with the fewest right answers first; 1 has no "
                              "samples."));
  EXPECT_THAT(html, HasSubstr("<th scope=\"row\">&lt;dog&gt;</th>"));
  EXPECT_THAT(html, HasSubstr("data-label=\"Right where predicted\"><span class=\"unavailable\">"));
  EXPECT_THAT(report_text(of_classes(), 40, false), HasSubstr("cow"));
}

TEST(ClassReport, IsNotThereWithoutCounts) {
  EXPECT_THAT(report_html(Report{}), Not(HasSubstr("Answers by class")));
  EXPECT_THAT(report_text(Report{}, 80, false), Not(HasSubstr("Answers by class")));
}

}  // namespace
}  // namespace headrace::detail
