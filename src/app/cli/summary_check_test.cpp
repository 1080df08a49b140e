#include "app/cli/summary_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>

#include <nlohmann/json.hpp>

#include "app/cli/test_runs.h"
#include "core/base/error_of.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;
using testing::Not;

class Summary : public Folder {
 protected:
  RunReport checked() {
    write(file_, summary_.dump(2));
    return check_run(file_, here_);
  }

  const std::filesystem::path file_ = folder_ / "summary.json";
  // As get_performance_summary() has it of a job that is well.
  Json summary_{{"config", {{"optimization_level", "advanced"}}},
                {"features", Json::object()},
                {"compilation", nullptr},
                {"live_tuning", {{"status", "applied"}}},
                {"performance_monitor", nullptr},
                {"cache_stats", "unavailable: not built yet"},
                {"memory_trends", "unavailable: not built yet"}};
  Machine here_;
};

Json attempt(const char* mode, bool tried, bool applied, const char* reason) {
  return {{"mode", mode}, {"tried", tried}, {"applied", applied}, {"reason", reason}};
}

TEST_F(Summary, OfAJobThatIsWellHasNoFindingAndTellsTheThreeFigures) {
  const RunReport report = checked();
  EXPECT_TRUE(report.findings.empty());
  EXPECT_THAT(report.facts, testing::Contains(testing::Pair("Level", "advanced")));
  EXPECT_EQ(report.figures["cache_stats"], "unavailable: not built yet");
  EXPECT_EQ(report.figures["memory_trends"], "unavailable: not built yet");
  EXPECT_EQ(report.figures["performance_summary"]["config"]["optimization_level"], "advanced");
  EXPECT_FALSE(report.figures["performance_summary"].contains("cache_stats"));
}

TEST_F(Summary, ACompilationThatFailedShowsItsAttempts) {
  summary_["compilation"] = {{"applied", "eager"},
                             {"attempts",
                              {attempt("max-autotune-no-cudagraphs", true, false, "no C++ compiler"),
                               attempt("default", true, false, "InductorError: x"), attempt("eager", true, true, "")}}};
  const RunReport report = checked();
  ASSERT_EQ(codes(report.findings), std::vector<std::string>{"compile_failed"});
  EXPECT_THAT(report.findings[0].sentence,
              HasSubstr("max-autotune-no-cudagraphs: no C++ compiler; default: InductorError: x"));
  EXPECT_THAT(report.findings[0].sentence, Not(HasSubstr("eager: ")));
}

TEST_F(Summary, ALaterModeThatWorksAndAModelThatWasNotCalledAreNoFailure) {
  summary_["compilation"] = {{"applied", "default"},
                             {"attempts",
                              {attempt("reduce-overhead", true, false, "x"), attempt("default", true, true, ""),
                               attempt("eager", false, false, "a mode before it is in use")}}};
  EXPECT_TRUE(checked().findings.empty());
  summary_["compilation"] = {{"applied", "eager"}, {"attempts", {attempt("default", true, false, "undone")}}};
  EXPECT_TRUE(checked().findings.empty());
  summary_["compilation"] = {{"applied", "default"}, {"attempts", {attempt("default", false, false, "not called")}}};
  EXPECT_TRUE(checked().findings.empty());
}

TEST_F(Summary, MemoryIsSetAgainstWhatMayBeUsedHere) {
  summary_["performance_monitor"]["memory"]["peak"] = 8.1e9;
  EXPECT_TRUE(checked().findings.empty());  // The limit is not known.
  here_.memory_limit = 10'000'000'000;
  EXPECT_EQ(codes(checked().findings), std::vector<std::string>{"memory_nearly_full"});
  summary_["performance_monitor"]["memory"]["peak"] = 7.9e9;
  EXPECT_TRUE(checked().findings.empty());
}

TEST_F(Summary, OtherFilesAreRefusedByName) {
  for (const char* text : {"", "[1]", "{\"config\": {}}", "{"}) {
    write(file_, text);
    const std::string refusal = error_of(ErrorCode::corrupt_data, [&] { check_run(file_, here_); });
    EXPECT_THAT(refusal, HasSubstr("summary.json: wanted a run's folder, or the JSON of get_performance_summary()"));
  }
  for (const char* part : {"compilation", "performance_monitor", "live_tuning"}) {
    Json other = summary_;
    other[part] = Json::array({1, nullptr});
    write(file_, other.dump());
    EXPECT_NO_THROW(check_run(file_, here_)) << part;
  }
}

}  // namespace
}  // namespace headrace
