#include "app/cli/torch_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "app/cli/test_runs.h"

namespace headrace {
namespace {

// As libkineto writes it: steps of these microseconds, and operators in them.
std::string kineto(const std::vector<std::string>& step_us) {
  std::string text = R"({
  "schemaVersion": 1,
  "deviceProperties": [

  ],
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1759622000000000000,
  "traceEvents": [
  {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "python", "dur": 3}})";
  for (const std::string& us : step_us) {
    text += R"(,
  {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 7, "tid": 7, "ts": 1.5, "dur": )" +
            us + R"(, "args": {"External id": 1, "name": "aten::mm"}},
  {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 7, "tid": 7, "ts": 1.5, "dur": 900.0},
  {"ph": "i", "name": "ProfilerStep#9", "ts": 1, "dur": 5})";
  }
  return text + R"(
  ],
  "traceName": "trace.json"
})";
}

class TorchTraces : public Folder {
 protected:
  std::optional<TorchTrace> read_back(const std::string& text) {
    write(folder_ / "trace.json", text);
    return read_torch_trace(folder_ / "trace.json");
  }
};

TEST_F(TorchTraces, StepsAreItsProfilerStepSpans) {
  const std::optional<TorchTrace> trace = read_back(kineto({"12100.5", "14000", "10000"}));
  ASSERT_TRUE(trace);
  EXPECT_TRUE(trace->is_whole);
  EXPECT_THAT(trace->step_s, testing::ElementsAre(testing::DoubleEq(12100.5e-6), testing::DoubleEq(14000e-6),
                                                  testing::DoubleEq(10000e-6)));
  EXPECT_EQ(torch_trace_text(*trace), "3 steps, 12.1 ms in the middle, 14.0 ms at most");
}

TEST_F(TorchTraces, AProfileWithoutAScheduleMarksNoSteps) {
  EXPECT_EQ(torch_trace_text(*read_back(kineto({}))), "no step is marked in it: its profile had no schedule");
}

TEST_F(TorchTraces, OneThatIsCutOffSaysSo) {
  const std::string whole = kineto({"12000", "13000"});
  EXPECT_FALSE(read_back(whole.substr(0, whole.size() - 3))->is_whole);
  EXPECT_FALSE(read_back(whole.substr(0, whole.size() / 2))->is_whole);
}

TEST_F(TorchTraces, OtherFilesAreNone) {
  EXPECT_FALSE(read_back(""));
  EXPECT_FALSE(read_back(R"({"otherData": {"format": "headrace-trace", "version": 1}, "traceEvents": []})"));
  EXPECT_FALSE(read_back(R"({"schemaVersion": 1})"));
  EXPECT_FALSE(read_torch_trace(folder_ / "absent.json"));
  EXPECT_FALSE(read_torch_trace(folder_));
}

TEST_F(TorchTraces, DocumentsOfOtherFormsHaveNoSteps) {
  for (const char* text :
       {R"({"schemaVersion": [], "deviceProperties": 1, "traceEvents": {"a": {"name": []}}})",
        R"({"schemaVersion": 1, "deviceProperties": [], "traceEvents": [1, [{"dur": 1}], {}, null]})",
        R"([{"schemaVersion": 1, "deviceProperties": [{"ph": "X", "name": "ProfilerStep#1", "dur": 1}]}])"}) {
    const std::optional<TorchTrace> trace = read_back(text);
    ASSERT_TRUE(trace) << text;
    EXPECT_TRUE(trace->is_whole) << text;
    EXPECT_TRUE(trace->step_s.empty()) << text;
  }
}

TEST_F(DoctorsRun, ATraceOfTorchProfilerIsNoFaultAndItsStepsAreTold) {
  write(run_ / "host_7.123.pt.trace.json", kineto({"12000", "13000", "14000"}));
  write(run_ / "trace-7-1.json", kineto({}));
  const RunReport report = checked();
  EXPECT_THAT(codes(report.findings), testing::IsEmpty());
  EXPECT_THAT(report.facts,
              testing::Contains(testing::Pair("torch.profiler",
                                              "host_7.123.pt.trace.json: 3 steps, 13.0 ms in the middle, 14.0 ms at "
                                              "most; trace-7-1.json: no step is marked in it: its profile had no "
                                              "schedule")));
}

TEST_F(DoctorsRun, ATraceOfTorchProfilerThatIsCutOffIsNamed) {
  write(run_ / "trace-7-1.json", kineto({"12000"}).substr(0, 300));
  const RunReport report = checked();
  ASSERT_THAT(codes(report.findings), testing::ElementsAre("damaged"));
  EXPECT_EQ(report.findings[0].sentence, "trace-7-1.json, of torch.profiler, is no whole JSON object");
}

}  // namespace
}  // namespace headrace
