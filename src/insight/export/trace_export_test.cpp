#include <headrace/trace_export.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"

namespace headrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TraceRecord sample() {
  TraceRecord record;
  record.names = {{"work", "work"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, 10, 0}, {0, 0, 20, 30, 0}};
  return record;
}

TEST(TraceExport, EachFormIsTheFileThatItsReadersKnow) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "trace";
  EXPECT_STREQ(suffix_of(TraceForm::chrome), ".json");
  EXPECT_STREQ(suffix_of(TraceForm::perfetto), ".perfetto-trace");
  const std::pair<const char*, const char*> begins[] = {{"chrome", "{\"displayTimeUnit\""},
                                                        {"perfetto", "\x0a"},
                                                        {"folded", "main;work 20\n"},
                                                        {"csv", "kind,name,"},
                                                        {"jsonl", "{\"kind\":\"trace\""}};
  for (const auto& [form, begin] : begins) {
    EXPECT_STREQ(to_string(trace_form_of(form)), form);
    EXPECT_THAT(export_trace(sample(), path, trace_form_of(form)), testing::ElementsAre(path));
    EXPECT_THAT(read_file(path, 1 << 20), StartsWith(begin)) << form;
  }
}

TEST(TraceExport, UnknownFormsAndFlowsThatAreNoneAreRefused) {
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { trace_form_of("perfeto"); }),
              HasSubstr("found \"perfeto\"; did you mean perfetto?"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { trace_form_of("x"); }),
              HasSubstr("wanted chrome, perfetto, folded, csv or jsonl"));
  const TemporaryFolder folder;
  const TraceFlow wrong[] = {{1, 0}};
  error_of(ErrorCode::invalid_argument, [&] { export_trace(sample(), folder.path() / "t", TraceForm::folded, wrong); });
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Two epochs of batches 0 and 1, and a chunk of a batch that nobody took.
TraceRecord loading() {
  TraceRecord record;
  record.names = {{"load_chunk", "work"}, {"take_batch", "work"}};
  record.threads = {"loader 0", "main"};
  record.events = {{0, 0, 0, 10, 0},  {1, 1, 11, 12, 0}, {0, 0, 13, 20, 1}, {1, 1, 21, 22, 1},
                   {0, 0, 30, 40, 0}, {1, 1, 41, 42, 0}, {0, 0, 43, 50, 2}};
  record.duration_ns = 60;
  return record;
}

std::vector<std::pair<std::uint32_t, std::uint32_t>> ends_of(const std::vector<TraceFlow>& flows) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ends;
  for (const TraceFlow& flow : flows) ends.emplace_back(flow.source, flow.target);
  return ends;
}

TEST(TraceExport, EachLoadedBatchPointsToWhereItIsTaken) {
  using testing::ElementsAre;
  using testing::Pair;
  EXPECT_THAT(ends_of(loader_flows(loading())), ElementsAre(Pair(0U, 1U), Pair(2U, 3U), Pair(4U, 5U)));
  EXPECT_THAT(ends_of(loader_flows(sample())), testing::IsEmpty());
}

TEST(TraceExport, FilesHaveTheLoadersFlowsOnceAndSayWhoRecorded) {
  const TemporaryFolder folder;
  const TraceRecord record = loading();
  const TraceFlow given[] = {{0, 1}};
  const auto content = [&](TraceForm form, std::span<const TraceFlow> flows) {
    const std::filesystem::path path = folder.path() / to_string(form);
    export_trace(record, path, form, flows);
    return read_file(path, 1 << 20);
  };
  for (const std::span<const TraceFlow> flows : {std::span<const TraceFlow>{}, std::span<const TraceFlow>{given}}) {
    const std::string chrome = content(TraceForm::chrome, flows);
    EXPECT_THAT(chrome, HasSubstr(R"("ph":"f","bp":"e","id":3,)"));
    EXPECT_THAT(chrome, testing::Not(HasSubstr(R"("id":4,)")));
    EXPECT_THAT(chrome, HasSubstr(R"("recorder":"headrace")"));
  }
  EXPECT_THAT(content(TraceForm::perfetto, {}), HasSubstr("recorder: headrace"));
  EXPECT_THAT(content(TraceForm::jsonl, {}), HasSubstr(R"("recorder":"headrace")"));
}

TEST(TraceExport, AFolderThatIsNotThereIsNamed) {
  const TemporaryFolder folder;
  for (const TraceForm form :
       {TraceForm::chrome, TraceForm::perfetto, TraceForm::folded, TraceForm::csv, TraceForm::jsonl}) {
    EXPECT_THAT(error_of(ErrorCode::io, [&] { export_trace(sample(), folder.path() / "none" / "t", form); }),
                HasSubstr("none"));
  }
}

}  // namespace
}  // namespace headrace
