#include "insight/export/event_table.h"

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/files.h"
#include "insight/export/detail/quote.h"

namespace headrace {
namespace {

// Lines that go on in pieces.
class LineBuffer {
 public:
  explicit LineBuffer(const std::function<void(std::span<const std::byte>)>& append) : append_(append) {}

  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() > kBufferBytes) flush();
  }
  void flush() {
    append_(std::as_bytes(std::span{buffer_.data(), buffer_.size()}));
    buffer_.clear();
  }

 private:
  static constexpr std::size_t kBufferBytes = 64 * 1024;
  const std::function<void(std::span<const std::byte>)>& append_;
  fmt::memory_buffer buffer_;
};

bool is_gauge(const TraceEvent& event) {
  return event.begin_ns == event.end_ns;
}

// What a row of each name, and of each thread, holds of its text: quoted once.
std::vector<std::string> name_cells(const TraceRecord& record, const char* format,
                                    std::string (*quote)(const std::string&)) {
  std::vector<std::string> cells;
  for (const TraceRecord::Name& name : record.names) {
    cells.push_back(fmt::format(fmt::runtime(format), quote(name.text), quote(name.category)));
  }
  return cells;
}
std::vector<std::string> thread_cells(const TraceRecord& record, std::string (*quote)(const std::string&)) {
  std::vector<std::string> cells;
  for (const std::string& thread : record.threads) cells.push_back(quote(thread));
  return cells;
}

}  // namespace

void write_trace_csv(const TraceRecord& record, const std::filesystem::path& path) {
  const auto names = name_cells(record, "{},{}", detail::csv_field);
  const auto threads = thread_cells(record, detail::csv_field);
  write_file(path, [&](const auto& append) {
    LineBuffer lines{append};
    lines.add("kind,name,category,thread,begin_ns,duration_ns,value\n");
    for (const TraceEvent& event : record.events) {
      if (is_gauge(event)) {
        lines.add("gauge,{},{},{},,{}\n", names[event.name], threads[event.thread], event.begin_ns, event.value);
      } else {
        lines.add("span,{},{},{},{},{}\n", names[event.name], threads[event.thread], event.begin_ns,
                  event.end_ns - event.begin_ns, event.value);
      }
    }
    for (const auto& counter : record.counters)
      lines.add("counter,{},,,,,{}\n", detail::csv_field(counter.text), counter.total);
    lines.add("counter,dropped events,,,,,{}\n", record.dropped);
    lines.flush();
  });
}

void write_trace_jsonl(const TraceRecord& record, const std::filesystem::path& path) {
  const auto names = name_cells(record, R"("name":{},"category":{})", detail::json_string);
  const auto threads = thread_cells(record, detail::json_string);
  write_file(path, [&](const auto& append) {
    LineBuffer lines{append};
    lines.add(
        "{{\"kind\":\"trace\",\"format\":\"headrace-events\",\"version\":1,\"recorder\":\"headrace\",\"start_ns\":{},"
        "\"duration_ns\":{},\"dropped\":{}}}\n",
        record.start_ns == 0 ? "null" : fmt::to_string(record.start_ns), record.duration_ns, record.dropped);
    for (const TraceEvent& event : record.events) {
      if (is_gauge(event)) {
        lines.add("{{\"kind\":\"gauge\",{},\"thread\":{},\"begin_ns\":{},\"value\":{}}}\n", names[event.name],
                  threads[event.thread], event.begin_ns, event.value);
      } else {
        lines.add("{{\"kind\":\"span\",{},\"thread\":{},\"begin_ns\":{},\"duration_ns\":{},\"value\":{}}}\n",
                  names[event.name], threads[event.thread], event.begin_ns, event.end_ns - event.begin_ns, event.value);
      }
    }
    for (const auto& counter : record.counters) {
      lines.add("{{\"kind\":\"counter\",\"name\":{},\"value\":{}}}\n", detail::json_string(counter.text),
                counter.total);
    }
    lines.flush();
  });
}

}  // namespace headrace
