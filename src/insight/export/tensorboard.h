// TensorBoard's event files, written without TensorBoard.
//
// A file is a list of TFRecords: length, payload, and the masked CRC-32C of either; a payload is an Event with one
// Summary value (field numbers of TensorFlow's published event.proto and summary.proto). A file that a killed process
// left ends with a record that may be cut, which readers leave out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "insight/export/append_file.h"
#include "insight/export/detail/protobuf.h"
#include "insight/export/metric.h"

namespace headrace {

// One new file below `folder` a writer: "events.out.tfevents.<second>.<host>.<process>.<number>"; TensorBoard joins the
// files of a folder. For one thread at a time. Records are collected up to 64 KiB; flush() before anyone is to see
// them.
class TensorBoardWriter {
 public:
  // Makes the folder and those above it. Error{io} names what cannot be made.
  explicit TensorBoardWriter(const std::filesystem::path& folder);

  // A scalar. TensorBoard keeps float32: the value is rounded to it, and beyond its range becomes an infinity. No
  // allocation once the buffers have grown. `tag`: UTF-8, "loss/train" is shown in the group "loss".
  void add_scalar(std::string_view tag, double value, MetricMoment moment);
  // The tag's distribution at this step. Error{invalid_argument}: check_buckets'.
  void add_histogram(std::string_view tag, const HistogramBuckets& buckets, MetricMoment moment);
  // Either, with the metric's name and its labels' values as tag, "gpu.utilization/0". What is unavailable has no
  // point.
  void add(const Metric& metric, MetricMoment moment);

  void flush();  // AppendFile's: Error{io}, after which writing goes on.
  void sync();
  const std::filesystem::path& path() const noexcept { return file_.path(); }

 private:
  void add_event(MetricMoment moment);  // With what summary_ holds.
  void add_record(std::string_view payload);

  AppendFile file_;
  detail::ProtobufMessage value_, summary_, event_, histogram_;  // Kept for their memory.
  std::string record_;
};

}  // namespace headrace
