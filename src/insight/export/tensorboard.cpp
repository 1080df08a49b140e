#include "insight/export/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <limits>
#include <system_error>
#include <vector>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "insight/export/detail/crc32c.h"

namespace headrace {
namespace {

// Field numbers of Event, Summary, Summary.Value and HistogramProto.
namespace event_field {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
}
namespace value_field {
constexpr int kTag = 1, kSimpleValue = 2, kHistogram = 5;
}
namespace histogram_field {
constexpr int kMin = 1, kMax = 2, kCount = 3, kSum = 4, kSumOfSquares = 5, kBucketLimit = 6, kBucket = 7;
}
constexpr int kSummaryValue = 1;

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

AppendFile new_file(const std::filesystem::path& folder) {
  static std::atomic<int> serial{0};  // Two writers of one process and second.
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorCode::io, "tensorboard: cannot make {}: {}", folder.string(), error.message());
  return AppendFile::create(folder / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", wall_ns() / 1'000'000'000,
                                                 host_name(), ::getpid(), serial.fetch_add(1)));
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::filesystem::path& folder) : file_(new_file(folder)) {
  event_.add_double(event_field::kWallTime, seconds(wall_ns()));
  event_.add_text(event_field::kFileVersion, "brain.Event:2");  // Readers want it in the first record.
  add_record(event_.bytes());
  flush();
}

void TensorBoardWriter::add_scalar(std::string_view tag, double value, MetricMoment moment) {
  value_.clear();
  value_.add_text(value_field::kTag, tag);
  value_.add_float(value_field::kSimpleValue, static_cast<float>(value));
  add_event(moment);
}

void TensorBoardWriter::add_histogram(std::string_view tag, const HistogramBuckets& buckets, MetricMoment moment) {
  check_buckets(tag, buckets);
  std::vector<double> limits = buckets.upper_bounds;
  limits.push_back(std::numeric_limits<double>::max());  // The edge that TensorFlow gives its last bucket.
  const std::vector<double> counts(buckets.counts.begin(), buckets.counts.end());
  histogram_.clear();
  histogram_.add_double(histogram_field::kMin, buckets.min);
  histogram_.add_double(histogram_field::kMax, buckets.max);
  histogram_.add_double(histogram_field::kCount, static_cast<double>(buckets.count()));
  histogram_.add_double(histogram_field::kSum, buckets.sum);
  histogram_.add_double(histogram_field::kSumOfSquares, buckets.sum_of_squares);
  histogram_.add_packed(histogram_field::kBucketLimit, limits);
  histogram_.add_packed(histogram_field::kBucket, counts);
  value_.clear();
  value_.add_text(value_field::kTag, tag);
  value_.add_message(value_field::kHistogram, histogram_);
  add_event(moment);
}

void TensorBoardWriter::add(const Metric& metric, MetricMoment moment) {
  std::string tag = metric.name;
  for (const MetricLabel& label : metric.labels) tag += '/' + label.value;
  if (metric.histogram) {
    add_histogram(tag, *metric.histogram, moment);
  } else if (metric.value) {
    add_scalar(tag, *metric.value, moment);
  }
}

void TensorBoardWriter::add_event(MetricMoment moment) {
  summary_.clear();
  summary_.add_message(kSummaryValue, value_);
  event_.clear();
  event_.add_double(event_field::kWallTime, seconds(moment.wall_ns));
  event_.add_integer(event_field::kStep, static_cast<std::uint64_t>(moment.step));
  event_.add_message(event_field::kSummary, summary_);
  add_record(event_.bytes());
}

void TensorBoardWriter::add_record(std::string_view payload) {
  const auto append_raw = [this](const auto& value) {
    char raw[sizeof(value)];
    std::memcpy(raw, &value, sizeof(value));
    record_.append(raw, sizeof(value));
  };
  record_.clear();
  append_raw(static_cast<std::uint64_t>(payload.size()));
  append_raw(detail::masked_crc32c(record_));
  record_.append(payload);
  append_raw(detail::masked_crc32c(payload));
  file_.add(record_);
}

void TensorBoardWriter::flush() {
  file_.flush();
}

void TensorBoardWriter::sync() {
  file_.sync();
}

}  // namespace headrace
