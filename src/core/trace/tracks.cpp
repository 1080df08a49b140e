#include "core/trace/tracks.h"

#include <fmt/format.h>

#include "core/base/fail.h"

namespace headrace {
namespace {

// The ends of the spans that are open on a track, innermost last.
struct OpenSpans {
  std::uint32_t track;
  std::vector<std::int64_t> ends;

  // Whether a span nests here; if so it is opened.
  bool open(const TraceEvent& event) {
    while (!ends.empty() && ends.back() <= event.begin_ns) ends.pop_back();
    if (!ends.empty() && ends.back() < event.end_ns) return false;
    ends.push_back(event.end_ns);
    return true;
  }
};

}  // namespace

Tracks assign_tracks(const TraceRecord& record) {
  Tracks tracks{record.threads, {}, {}};
  tracks.of_event.reserve(record.events.size());
  std::vector<std::vector<OpenSpans>> of_thread;
  for (std::uint32_t thread = 0; thread < record.threads.size(); ++thread) {
    tracks.threads.push_back(thread);
    of_thread.push_back({{thread, {}}});
  }

  for (const TraceEvent& event : record.events) {
    HEADRACE_CHECK(event.thread < record.threads.size(), "event of thread {}", event.thread);
    std::vector<OpenSpans>& rows = of_thread[event.thread];
    std::size_t row = 0;
    if (event.end_ns > event.begin_ns) {
      while (row < rows.size() && !rows[row].open(event)) ++row;
      if (row == rows.size()) {
        rows.push_back({static_cast<std::uint32_t>(tracks.names.size()), {event.end_ns}});
        tracks.threads.push_back(event.thread);
        tracks.names.push_back(fmt::format("{} ({})", record.threads[event.thread], row + 1));
      }
    }
    tracks.of_event.push_back(rows[row].track);
  }
  return tracks;
}

}  // namespace headrace
