// The bytes of TensorBoard's files; tests/readers/export_readers_test.py has its own reader read them.
#include "insight/export/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "insight/export/detail/crc32c.h"
#include "insight/export/wire_fields.h"

namespace headrace {
namespace {

using testing::HasSubstr;

// The payloads of the whole records at the front.
std::vector<std::string> records(std::string_view bytes) {
  std::vector<std::string> found;
  while (bytes.size() >= 16) {
    std::uint64_t size = 0;
    std::uint32_t crc = 0;
    std::memcpy(&size, bytes.data(), 8);
    std::memcpy(&crc, bytes.data() + 8, 4);
    EXPECT_EQ(crc, detail::masked_crc32c(bytes.substr(0, 8)));
    if (bytes.size() < size + 16) break;
    std::memcpy(&crc, bytes.data() + 12 + size, 4);
    found.emplace_back(bytes.substr(12, size));
    EXPECT_EQ(crc, detail::masked_crc32c(found.back()));
    bytes.remove_prefix(size + 16);
  }
  return found;
}

class TensorBoard : public testing::Test {
 protected:
  std::string content() const { return read_file(writer_.path(), 1 << 24); }

  const TemporaryFolder folder_;
  TensorBoardWriter writer_{folder_.path() / "runs" / "performance_optimization"};
};

TEST_F(TensorBoard, FirstRecordTellsTheVersion) {
  EXPECT_THAT(writer_.path().filename().string(), testing::StartsWith("events.out.tfevents."));
  ASSERT_EQ(records(content()).size(), 1U);
  EXPECT_EQ(wire_field(records(content())[0], 3).bytes, "brain.Event:2");
}

TEST_F(TensorBoard, ScalarsKeepTagStepTimeAndValue) {
  writer_.add_scalar("loss/train", 0.25, {1'500'000'000, 3});
  writer_.add_scalar("loss/train", std::nan(""), {2'000'000'000, -1});
  writer_.add_scalar("loss/train", 1e300, {2'000'000'000, 4});
  writer_.flush();
  const auto found = records(content());
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(wire_field(found[1], 1).real(), 1.5);
  EXPECT_EQ(wire_field(found[1], 2).integer, 3U);
  const std::string_view value = wire_field(wire_field(found[1], 5).bytes, 1).bytes;
  EXPECT_EQ(wire_field(value, 1).bytes, "loss/train");
  EXPECT_EQ(wire_field(value, 2).real32(), 0.25F);
  EXPECT_EQ(static_cast<std::int64_t>(wire_field(found[2], 2).integer), -1);
  EXPECT_TRUE(std::isnan(wire_field(wire_field(wire_field(found[2], 5).bytes, 1).bytes, 2).real32()));
  EXPECT_TRUE(std::isinf(wire_field(wire_field(wire_field(found[3], 5).bytes, 1).bytes, 2).real32()));
}

TEST_F(TensorBoard, HistogramsKeepTheirBuckets) {
  writer_.add_histogram("times", {{1, 2}, {5, 0, 7}, 30, 100, 0.5, 9}, {0, 1});
  writer_.flush();
  const std::string event = records(content()).at(1);
  const std::string_view histogram = wire_field(wire_field(wire_field(event, 5).bytes, 1).bytes, 5).bytes;
  const double figures[] = {0.5, 9, 12, 30, 100};
  for (std::uint64_t field = 1; field <= 5; ++field) EXPECT_EQ(wire_field(histogram, field).real(), figures[field - 1]);
  double limits[3], counts[3];
  ASSERT_EQ(wire_field(histogram, 6).bytes.size(), sizeof(limits));
  std::memcpy(limits, wire_field(histogram, 6).bytes.data(), sizeof(limits));
  std::memcpy(counts, wire_field(histogram, 7).bytes.data(), sizeof(counts));
  EXPECT_THAT(limits, testing::ElementsAre(1, 2, std::numeric_limits<double>::max()));
  EXPECT_THAT(counts, testing::ElementsAre(5, 0, 7));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] {
                         writer_.add_histogram("times", {{1}, {1}}, {});
                       }),
              HasSubstr("times"));
}

TEST_F(TensorBoard, MetricsAreTaggedByNameAndLabelsAndLeftOutWhereUnavailable) {
  Metric metric;
  metric.name = "gpu.utilization";
  metric.labels = {{"gpu", "1"}};
  writer_.add(metric, {});
  metric.value = 0.5;
  writer_.add(metric, {});
  metric.histogram = HistogramBuckets{{1}, {1, 0}};
  writer_.add(metric, {});
  writer_.flush();
  const auto found = records(content());
  ASSERT_EQ(found.size(), 3U);
  for (int i = 1; i <= 2; ++i) {
    EXPECT_EQ(wire_field(wire_field(wire_field(found[static_cast<std::size_t>(i)], 5).bytes, 1).bytes, 1).bytes,
              "gpu.utilization/1");
  }
}

TEST_F(TensorBoard, AFileCutAtAnyByteKeepsTheRecordsBefore) {
  for (int step = 0; step < 5; ++step) writer_.add_scalar("x", step, {0, step});
  writer_.flush();
  const std::string whole = content();
  std::size_t before = 0;
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    const std::size_t now = records(std::string_view(whole).substr(0, size)).size();
    EXPECT_TRUE(now == before || now == before + 1) << size;
    before = now;
  }
  EXPECT_EQ(before, 6U);
}

TEST_F(TensorBoard, WritersOfOneFolderHaveFilesOfTheirOwn) {
  const TensorBoardWriter other{folder_.path() / "runs" / "performance_optimization"};
  EXPECT_NE(other.path(), writer_.path());
  write_file(folder_.path() / "file", "");
  EXPECT_THAT(error_of(ErrorCode::io, [&] { TensorBoardWriter{folder_.path() / "file" / "runs"}; }),
              HasSubstr("cannot make"));
}

}  // namespace
}  // namespace headrace
