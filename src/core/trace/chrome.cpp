// The Chrome JSON trace: one event a line, the facts of the file before the events.
#include "core/trace/chrome.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/trace/flows.h"
#include "core/trace/tracks.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "headrace-trace";
constexpr const char* kRecorder = "headrace";
constexpr int kVersion = 1;
constexpr const char* kStack = "stack";  // The category of gauges that are shares of one whole.
constexpr std::int64_t kBytesMax = std::int64_t{1} << 30;
constexpr int kDepthMax = 4;                              // Of the arguments of an event.
constexpr std::int64_t kTimeMax = std::int64_t{1} << 53;  // Nanoseconds, 104 days: a double holds them exactly.

std::string quoted(const std::string& text) {
  // Bytes that are not UTF-8 become U+FFFD: a name from outside must not stop the writing.
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

class ChromeWriter {
 public:
  using Append = std::function<void(std::span<const std::byte>)>;

  ChromeWriter(const TraceRecord& record, std::span<const TraceFlow> flows)
      : record_(record), tracks_(assign_tracks(record)), flow_ends_(flow_ends(flows)) {
    for (const auto& name : record.names) {
      labels_.push_back(label(name.text, name.category));
      const std::size_t dot = name.text.find('.');
      stacks_.emplace_back();
      if (name.category != kStack || dot == std::string::npos) continue;
      stacks_.back() = Stack{label(name.text.substr(0, dot), name.category), quoted(name.text.substr(dot + 1))};
    }
  }

  // One file, up to the event that passes `bytes_max`. False when that was the last one.
  bool write_part(const Append& append, std::int64_t bytes_max) {
    append_ = &append;
    written_ = 0;
    write_facts();
    add("\"traceEvents\":[\n{{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{{\"name\":\"headrace\"}}}}");
    for (std::size_t track = 0; track < tracks_.names.size(); ++track) {
      add(",\n{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"thread_name\",\"args\":{{\"name\":{}", track,
          quoted(tracks_.names[track]));
      if (track >= record_.threads.size()) add(",\"thread\":{}", tracks_.threads[track]);
      add("}}}}");
    }
    while (next_event_ < record_.events.size() && bytes() <= bytes_max) {
      const std::size_t event = next_event_;
      next_event_ = write_events(event);
      write_flow_ends(event);
    }
    add("\n]}}\n");
    flush();
    return next_event_ < record_.events.size();
  }

 private:
  // Of a name "track.series": the track's label and the series' name, escaped.
  struct Stack {
    std::string label;
    std::string series;
  };

  static std::string label(const std::string& name, const std::string& category) {
    return fmt::format(R"("name":{},"cat":{})", quoted(name), quoted(category));
  }

  void write_facts() {
    add("{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"format\":\"{}\",\"version\":{},\"recorder\":\"{}\","
        "\"dropped\":{},\"duration_ns\":{},\"counters\":{{",
        kFormat, kVersion, kRecorder, record_.dropped, record_.duration_ns);
    const char* separator = "";
    for (const auto& counter : record_.counters) {
      add("{}{}:{}", std::exchange(separator, ","), quoted(counter.text), counter.total);
    }
    add("}}}},\n");
  }

  // The event at `first`, or all gauges of its stack's moment as one. Returns the first one after them.
  std::size_t write_events(std::size_t first) {
    const TraceEvent& event = record_.events[first];
    HEADRACE_CHECK(event.name < labels_.size() && event.thread < record_.threads.size(), "event of name {}, thread {}",
                   event.name, event.thread);
    HEADRACE_CHECK(event.begin_ns >= 0 && event.begin_ns <= event.end_ns && event.end_ns <= kTimeMax,
                   "event from {} to {} ns", event.begin_ns, event.end_ns);
    const bool is_gauge = event.begin_ns == event.end_ns;
    add(",\n{{\"ph\":\"{}\",\"pid\":1,\"tid\":{},\"ts\":{}.{:03},", is_gauge ? 'C' : 'X', tracks_.of_event[first],
        event.begin_ns / 1000, event.begin_ns % 1000);
    const std::int64_t length = event.end_ns - event.begin_ns;
    if (!is_gauge) add("\"dur\":{}.{:03},", length / 1000, length % 1000);
    if (buffer_.size() > kBufferBytes) flush();
    if (is_gauge && stacks_[event.name]) return write_stack(first);
    add("{},\"args\":{{\"value\":{}}}}}", labels_[event.name], event.value);
    return first + 1;
  }

  // Both lie at the begin of their span, which an 'f' is bound to as the enclosing one ("bp").
  void write_flow_ends(std::size_t event) {
    for (; next_end_ < flow_ends_.size() && flow_ends_[next_end_].event == event; ++next_end_) {
      const auto& [index, flow, is_target] = flow_ends_[next_end_];
      const std::int64_t at = record_.events[index].begin_ns;
      add(",\n{{\"ph\":\"{}\",{}\"id\":{},\"pid\":1,\"tid\":{},\"ts\":{}.{:03},\"name\":\"flow\",\"cat\":\"flow\"}}",
          is_target ? 'f' : 's', is_target ? "\"bp\":\"e\"," : "", flow + 1, tracks_.of_event[index], at / 1000,
          at % 1000);
    }
  }

  std::size_t write_stack(std::size_t first) {
    const TraceEvent& event = record_.events[first];
    const Stack& stack = *stacks_[event.name];
    add("{},\"args\":{{{}:{}", stack.label, stack.series, event.value);
    std::size_t next = first + 1;
    for (; next < record_.events.size() && belongs(record_.events[next], first, next); ++next) {
      add(",{}:{}", stacks_[record_.events[next].name]->series, record_.events[next].value);
    }
    add("}}}}");
    return next;
  }

  // Whether `event` is one more series of the stack whose events [first, next) are.
  bool belongs(const TraceEvent& event, std::size_t first, std::size_t next) const {
    const TraceEvent& opener = record_.events[first];
    if (event.begin_ns != opener.begin_ns || event.end_ns != opener.end_ns || event.thread != opener.thread ||
        event.name >= stacks_.size() || !stacks_[event.name] ||
        stacks_[event.name]->label != stacks_[opener.name]->label) {
      return false;
    }
    return std::none_of(record_.events.begin() + static_cast<std::ptrdiff_t>(first),
                        record_.events.begin() + static_cast<std::ptrdiff_t>(next), [&](const TraceEvent& taken) {
                          return stacks_[taken.name]->series == stacks_[event.name]->series;
                        });
  }

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
  }
  std::int64_t bytes() const { return written_ + static_cast<std::int64_t>(buffer_.size()); }
  void flush() {
    written_ = bytes();
    (*append_)(std::as_bytes(std::span{buffer_.data(), buffer_.size()}));
    buffer_.clear();
  }

  static constexpr std::size_t kBufferBytes = 64 * 1024;
  const TraceRecord& record_;
  const Tracks tracks_;
  const std::vector<FlowEnd> flow_ends_;
  std::size_t next_event_ = 0;  // What is not written yet.
  std::size_t next_end_ = 0;
  const Append* append_ = nullptr;            // Of the file that is being written.
  std::int64_t written_ = 0;                  // Bytes given to it.
  std::vector<std::string> labels_;           // Of each name, escaped once.
  std::vector<std::optional<Stack>> stacks_;  // As long; nullopt for a name that is no part of a stack.
  fmt::memory_buffer buffer_;
};

// Follows nlohmann's parser and takes each event when it ends, so that no tree of the whole file is built.
class ChromeReader {
 public:
  explicit ChromeReader(std::string path) : path_(std::move(path)) {}

  // False discards what was parsed: nothing is needed once it was taken.
  bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 0 && event == Json::parse_event_t::object_start) rooted_ = true;
    if (!rooted_) corrupt("not a headrace trace");
    if (depth == 1 && event == Json::parse_event_t::key) {
      section_ = parsed.get<std::string>();
      if (section_ == "traceEvents" && !has_facts_) corrupt("not a headrace trace: no otherData before the events");
    }
    if (depth > kDepthMax) corrupt("nested deeper than any trace");
    if (section_ == "otherData") {
      return depth == 1 && event == Json::parse_event_t::object_end ? take_facts(parsed) : true;
    }
    if (section_ == "traceEvents") {
      if (depth == 2 && (event == Json::parse_event_t::value || event == Json::parse_event_t::array_start)) {
        corrupt("an event is not an object");
      }
      return depth == 2 && event == Json::parse_event_t::object_end ? take_event(parsed) : true;
    }
    return depth == 0;
  }

  TraceRecord finish() && {
    if (!has_facts_) corrupt("not a headrace trace");
    return std::move(record_);
  }

  [[noreturn]] void corrupt(const std::string& reason) const {
    fail(ErrorCode::corrupt_data, "trace: {}: {}", path_, reason);
  }

 private:
  bool take_facts(const Json& facts) {
    if (has_facts_) corrupt("otherData comes twice");
    if (facts.value("format", Json()) != kFormat) corrupt("not a headrace trace");
    const std::int64_t version = integer(facts, "version", 0, kTimeMax);
    if (version != kVersion) corrupt(fmt::format("version {}, this build reads {}", version, kVersion));
    record_.dropped = integer(facts, "dropped", 0, std::numeric_limits<std::int64_t>::max());
    record_.duration_ns = integer(facts, "duration_ns", 0, kTimeMax);
    const Json counters = facts.value("counters", Json());
    if (!counters.is_object()) corrupt("counters is not an object");
    for (const auto& counter : counters.items()) {
      record_.counters.push_back({counter.key(), integer(counters, counter.key().c_str())});
    }
    has_facts_ = true;
    return false;
  }

  bool take_event(const Json& event) {
    const std::string phase = text(event, "ph");
    const Json arguments = event.value("args", Json::object());
    if (phase == "M" && text(event, "name") == "thread_name") {
      // In the order of their numbers, as they were written: an event's track is then an index.
      const auto track = static_cast<std::int64_t>(threads_.size());
      integer(event, "tid", track, track);
      const auto known = static_cast<std::int64_t>(record_.threads.size());
      if (arguments.contains("thread")) {  // A further track of a thread, for spans that overlap.
        threads_.push_back(static_cast<std::uint32_t>(integer(arguments, "thread", 0, known - 1)));
      } else {
        threads_.push_back(static_cast<std::uint32_t>(known));
        record_.threads.push_back(text(arguments, "name"));
      }
    } else if (phase == "X" || phase == "C") {
      TraceEvent taken{};
      const std::string name = text(event, "name"), category = text(event, "cat");
      const std::int64_t track = integer(event, "tid", 0, static_cast<std::int64_t>(threads_.size()) - 1);
      taken.thread = threads_[static_cast<std::size_t>(track)];
      taken.begin_ns = nanoseconds(event, "ts");
      taken.end_ns = taken.begin_ns + (phase == "X" ? nanoseconds(event, "dur") : 0);
      if (phase == "X" && taken.end_ns == taken.begin_ns) missing("dur", "above 0");
      if (!record_.events.empty() && taken.begin_ns < record_.events.back().begin_ns)
        corrupt("events are not in order");
      const bool is_plain = arguments.size() == 1 && arguments.contains("value");
      if (phase == "C" && category == kStack && !is_plain) {
        take_stack(taken, name, arguments);
      } else {
        taken.name = name_index(name, category);
        taken.value = integer(arguments, "value");
        record_.events.push_back(taken);
      }
    } else if (phase != "M" && phase != "s" && phase != "f") {  // Flows are no part of a record.
      corrupt(fmt::format("event {}: unknown phase {}", record_.events.size(), quoted(phase)));
    }
    return false;
  }

  void take_stack(TraceEvent moment, const std::string& track, const Json& series) {
    if (!series.is_object() || series.empty()) missing("args", "values by series");
    for (const auto& [name, value] : series.items()) {
      moment.name = name_index(track + '.' + name, kStack);
      moment.value = integer(series, name.c_str());
      record_.events.push_back(moment);
    }
  }

  std::uint32_t name_index(const std::string& name, const std::string& category) {
    const auto next = static_cast<std::uint32_t>(record_.names.size());
    const auto [found, is_new] = names_.try_emplace({name, category}, next);
    if (is_new) record_.names.push_back({name, category});
    return found->second;
  }

  std::string text(const Json& object, const char* key) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_string()) missing(key, "a text");
    return found->get<std::string>();
  }

  std::int64_t integer(const Json& object, const char* key, std::int64_t low = std::numeric_limits<std::int64_t>::min(),
                       std::int64_t high = std::numeric_limits<std::int64_t>::max()) const {
    const auto found = object.find(key);
    if (found == object.end() || !found->is_number_integer()) missing(key, "a whole number");
    const bool is_too_large =
        found->is_number_unsigned() && found->get<std::uint64_t>() > static_cast<std::uint64_t>(high < 0 ? 0 : high);
    const auto value = found->get<std::int64_t>();
    if (is_too_large || value < low || value > high) missing(key, fmt::format("{} to {}", low, high));
    return value;
  }

  std::int64_t nanoseconds(const Json& event, const char* key) const {
    const auto found = event.find(key);
    if (found == event.end() || !found->is_number()) missing(key, "a number");
    const double microseconds = found->get<double>();
    if (!(microseconds >= 0 && microseconds * 1000 <= static_cast<double>(kTimeMax))) missing(key, "a time");
    return std::llround(microseconds * 1000);
  }

  [[noreturn]] void missing(const char* key, const std::string& wanted) const {
    corrupt(fmt::format("event {}: {} is not {}", record_.events.size(), key, wanted));
  }

  const std::string path_;
  TraceRecord record_;
  std::vector<std::uint32_t> threads_;  // Of each track: index into record_.threads.
  std::map<std::pair<std::string, std::string>, std::uint32_t> names_;
  std::string section_;
  bool rooted_ = false;
  bool has_facts_ = false;
};

}  // namespace

void write_chrome_trace(const TraceRecord& record, const std::string& path) {
  ChromeWriter writer{record, {}};
  write_file(path, [&](const auto& append) { writer.write_part(append, std::numeric_limits<std::int64_t>::max()); });
}

std::vector<std::filesystem::path> write_chrome_parts(const TraceRecord& record, const std::filesystem::path& path,
                                                      std::span<const TraceFlow> flows, std::int64_t bytes_max) {
  check_flows(record, flows);
  ChromeWriter writer{record, flows};
  std::vector<std::filesystem::path> paths;
  for (bool is_more = true; is_more;) {
    std::filesystem::path part = path;
    if (!paths.empty()) {
      const std::string name =
          fmt::format("{}-{}{}", path.stem().string(), paths.size() + 1, path.extension().string());
      part.replace_filename(name);
    }
    write_file(part, [&](const auto& append) { is_more = writer.write_part(append, bytes_max); });
    paths.push_back(part);
  }
  return paths;
}

TraceRecord read_chrome_trace(const std::string& path) {
  const std::string content = read_file(path, kBytesMax);
  ChromeReader reader{path};
  try {
    // By reference: the parser would copy the reader into its std::function.
    const Json rest = Json::parse(content, [&reader](int depth, Json::parse_event_t event, Json& parsed) {
      return reader(depth, event, parsed);
    });
  } catch (const Json::parse_error& error) {
    reader.corrupt(fmt::format("not JSON from byte {} on", error.byte));
  } catch (const Json::exception& error) {
    reader.corrupt(error.what());
  }
  return std::move(reader).finish();
}

}  // namespace headrace
