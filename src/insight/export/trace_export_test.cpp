#include <headrace/trace_export.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
