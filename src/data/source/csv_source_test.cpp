#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "data/loader/testing.h"
#include "data/source/source_contract.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class CsvSource : public ScratchFolder {
 protected:
  std::shared_ptr<const Source> open(const std::string& content, Split split = Split::train) const {
    return open_source("csv:" + write("table.csv", content).string(), split);
  }
  std::string refusal(const std::string& content, ErrorCode code = ErrorCode::corrupt_data) const {
    return error_of(code, [&] { open(content); });
  }
};

std::vector<float> values_of(const Batch& batch) {
  const auto bytes = batch.field("values").bytes;
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

TEST_F(CsvSource, GivesItsNumbersInBatches) {
  const auto source = open("height,label,weight\n1.5,0,-2e1\r\n 2 , 3 ,0.25\n\n3,1,4\n");
  EXPECT_EQ(source->info().schema.text(), "values float32 (2); labels int64 ()");
  EXPECT_EQ(source->info().num_classes, 4);
  EXPECT_THAT(source->name(2), HasSubstr("table.csv:5"));
  expect_capabilities_agree(*source);
  Loader loader{source, options_of(2, 1), 1, false};
  Epoch epoch = loader.epoch(0);
  const auto first = epoch.next(), second = epoch.next();
  EXPECT_THAT(values_of(*first), ElementsAre(1.5F, -20.0F, 2.0F, 0.25F));
  EXPECT_THAT(values_of(*second), ElementsAre(3.0F, 4.0F));
  std::vector<std::int64_t> labels(2);
  std::memcpy(labels.data(), first->field("labels").bytes.data(), 16);
  EXPECT_THAT(labels, ElementsAre(0, 3));
}

TEST_F(CsvSource, WithoutLabelsHasNumbersAlone) {
  const auto source = open("a,b\n1,2\n3,4\n");
  EXPECT_EQ(source->info().schema.text(), "values float32 (2)");
  EXPECT_EQ(source->info().num_classes, kUnknownClasses);
  expect_capabilities_agree(*source);
  Loader loader{source, options_of(2, 0), 1, false};
  Epoch epoch = loader.epoch(0);
  EXPECT_THAT(values_of(*epoch.next()), ElementsAre(1.0F, 2.0F, 3.0F, 4.0F));
}

TEST_F(CsvSource, AColumnSaysTheSplit) {
  const std::string content = "split,x,label\ntrain,1,0\ntest,2,5\ntrain,3,1\n";
  EXPECT_EQ(open(content)->size(), 2);
  const auto test = open(content, Split::test);
  EXPECT_EQ(test->size(), 1);
  EXPECT_EQ(test->info().num_classes, open(content)->info().num_classes) << "classes are those of all splits";
  EXPECT_NE(test->info().fingerprint, open(content)->info().fingerprint);
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { open(content, Split::val); }),
              HasSubstr("has no split val; there is train, test (csv: splits are the column split)"));
  EXPECT_THAT(splits_of("csv:" + (folder_ / "table.csv").string()), ElementsAre(Split::train, Split::test));
}

TEST_F(CsvSource, WhatIsWrongIsNamedByLineAndColumn) {
  EXPECT_THAT(refusal("a,label\n1,0\nx1,0\n"), HasSubstr("table.csv: line 3, column a: \"x1\"; wanted a number"));
  EXPECT_THAT(refusal("a,label\n,0\n"), HasSubstr("line 2, column a: \"\"; wanted a number"));
  EXPECT_THAT(refusal("a,label\nnan,0\n"), HasSubstr("\"nan\"; wanted a number"));
  EXPECT_THAT(refusal("a,label\n1e99,0\n"), HasSubstr("\"1e99\"; wanted a number"));
  EXPECT_THAT(refusal("a,label\n1,0.5\n"), HasSubstr("column label: \"0.5\"; wanted a class, 0 to 999,999"));
  EXPECT_THAT(refusal("a,label\n1,-1\n"), HasSubstr("column label: \"-1\""));
  EXPECT_THAT(refusal("a,split\n1,eval\n"), HasSubstr("column split: \"eval\"; wanted train, val or test"));
  EXPECT_THAT(refusal("a,b\n1,2,\n"), HasSubstr("line 2 has 3 fields; the first line names 2"));
  EXPECT_THAT(refusal("a,a\n1,2\n"), HasSubstr("column 2 is named \"a\", as one before it"));
  EXPECT_THAT(refusal("a,\n1,2\n"), HasSubstr("column 2 is named \"\""));
  EXPECT_THAT(refusal("label,split\n1,train\n"), HasSubstr("has no columns but label and split"));
  EXPECT_THAT(refusal(""), HasSubstr("is empty; wanted a line with the columns' names"));
  EXPECT_THAT(refusal("a,b\n", ErrorCode::not_found), HasSubstr("has no split train"));
}

TEST_F(CsvSource, ASampleAboveTheLimitIsRefused) {
  const std::string uri = "csv:" + write("table.csv", "a,b,c\n1,2,3\n").string();
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { open_source(uri, Split::train, {.bytes = 11}); }),
              AllOf(HasSubstr("lines of 3 values, 12 bytes"), HasSubstr("data.max_sample_bytes")));
}

TEST_F(CsvSource, StandsAmongTheKnownSources) {
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, [] { open_source("lmdb:x", Split::train); }),
              HasSubstr("csv:FILE"));
}

}  // namespace
}  // namespace headrace
