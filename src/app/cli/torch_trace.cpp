#include "app/cli/torch_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "core/base/middle.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::size_t kHead = 64 << 10;
constexpr std::size_t kStepsMax = 1 << 20;
constexpr std::string_view kStep = "ProfilerStep#";

bool begins_as_kineto(std::ifstream& file) {
  std::string head(kHead, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  return head.find("\"schemaVersion\"") != std::string::npos && head.find("\"deviceProperties\"") != std::string::npos;
}

// Takes the durations of steps out of {"traceEvents": [{"ph": "X", "name": "ProfilerStep#3", "dur": 12.5, ...}]}.
class StepReader final : public nlohmann::json_sax<Json> {
 public:
  explicit StepReader(std::vector<double>& step_s) : step_s_(step_s) {}

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t& value) override {
    if (!is_of_event()) return true;
    if (key_ == "ph") is_span_ = value == "X";
    if (key_ == "name") is_step_ = value.starts_with(kStep);
    return true;
  }
  bool binary(binary_t&) override { return true; }
  bool key(string_t& value) override {
    if (depth_ == 1) in_events_ = value == "traceEvents";
    if (depth_ == kEvent) key_ = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (++depth_ == kEvent) is_span_ = is_step_ = false, microseconds_ = -1;
    return true;
  }
  bool end_object() override {
    if (depth_-- != kEvent || !in_events_) return true;
    if (is_span_ && is_step_ && microseconds_ >= 0 && step_s_.size() < kStepsMax) {
      step_s_.push_back(microseconds_ * 1e-6);
    }
    return true;
  }
  bool start_array(std::size_t) override { return ++depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  static constexpr int kEvent = 3;  // In a list in the document.

  bool is_of_event() const { return in_events_ && depth_ == kEvent; }
  bool number(double value) {
    if (is_of_event() && key_ == "dur") microseconds_ = value;
    return true;
  }

  std::vector<double>& step_s_;
  std::string key_;
  int depth_ = 0;
  bool in_events_ = false, is_span_ = false, is_step_ = false;
  double microseconds_ = -1;
};

std::string milliseconds(double seconds) {
  return fmt::format("{:.1f} ms", 1e3 * seconds);
}

}  // namespace

std::optional<TorchTrace> read_torch_trace(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  if (!file || !begins_as_kineto(file)) return std::nullopt;
  TorchTrace trace;
  const std::uintmax_t bytes = fs::file_size(path, error);
  if (error || bytes > static_cast<std::uintmax_t>(kTorchTraceMax)) {
    trace.is_read = false;
    return trace;
  }
  file.clear();
  file.seekg(0);
  StepReader reader(trace.step_s);
  trace.is_whole = Json::sax_parse(file, &reader);
  return trace;
}

std::string torch_trace_text(const TorchTrace& trace) {
  if (!trace.is_read) return "too large to look for its steps here";
  if (trace.step_s.empty()) return "no step is marked in it: its profile had no schedule";
  const std::size_t steps = trace.step_s.size();
  const double longest_s = *std::max_element(trace.step_s.begin(), trace.step_s.end());
  return fmt::format("{} {}, {} in the middle, {} at most", steps, steps == 1 ? "step" : "steps",
                     milliseconds(middle_of(trace.step_s)), milliseconds(longest_s));
}

}  // namespace headrace
