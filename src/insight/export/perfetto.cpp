#include "insight/export/perfetto.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/base/utf8.h"
#include "core/trace/flows.h"
#include "core/trace/tracks.h"
#include "insight/export/detail/protobuf.h"

namespace headrace {
namespace {

using detail::ProtobufMessage;
using detail::put_varint;
using detail::varint_bytes;

// Field numbers, by message (protos/perfetto/trace).
namespace packet_field {
constexpr int kClockSnapshot = 6, kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kInterned = 12, kSequenceFlags = 13,
              kTimestampClock = 58, kDefaults = 59, kTrackDescriptor = 60;
}
namespace event_field {
constexpr int kCategoryIds = 3, kDebugAnnotations = 4, kType = 9, kNameId = 10, kTrack = 11, kCounterValue = 30,
              kFlows = 47, kTerminatingFlows = 48;
}
namespace track_field {
constexpr int kUuid = 1, kName = 2, kProcess = 3, kThread = 4, kParent = 5, kCounter = 8;
}
namespace process_field {
constexpr int kPid = 1, kName = 6, kLabels = 8;
}
constexpr std::uint64_t kSliceBegin = 1, kSliceEnd = 2, kCounterType = 4;  // TrackEvent.Type.
constexpr std::uint64_t kStateCleared = 1, kNeedsState = 2;                // TracePacket.SequenceFlags.
constexpr std::uint64_t kMonotonic = 3;                                    // BuiltinClock.
constexpr std::uint64_t kDeltaClock = 64;                                  // The first that belongs to a sequence.
constexpr std::uint64_t kValueId = 1;                                      // Of the one debug annotation's name.
constexpr std::uint64_t kProcessUuid = 1;
constexpr std::uint64_t kPid = 1;
constexpr std::uint64_t kFirstThreadUuid = 2;  // Thread tracks, then counters.
constexpr char kPacketTag = 1 << 3 | 2;        // Trace.packet.

// Text that protobuf takes: what is not UTF-8 becomes '?'.
std::string utf8_of(std::string text) {
  for (std::size_t good = utf8_length(text); good < text.size();) {
    text[good] = '?';
    good += 1 + utf8_length(std::string_view(text).substr(good + 1));
  }
  return text;
}

class PerfettoWriter {
 public:
  using Append = std::function<void(std::span<const std::byte>)>;

  PerfettoWriter(const TraceRecord& record, std::span<const TraceFlow> flows, const Append& append)
      : record_(record),
        tracks_(assign_tracks(record)),
        append_(append),
        flow_ends_(flow_ends(flows)),
        piece_(kPieceBytes + kPacketBytesMax) {
    next_uuid_ = kFirstThreadUuid + tracks_.names.size();
  }

  void write() {
    for (const TraceEvent& event : record_.events) {
      HEADRACE_CHECK(event.name < record_.names.size() && event.begin_ns >= 0 && event.begin_ns <= event.end_ns,
                     "event of name {} from {} to {} ns", event.name, event.begin_ns, event.end_ns);
    }
    write_process();
    number_names();
    const std::vector<std::vector<std::uint32_t>> events = events_by_track();
    for (std::uint32_t track = 0; track < events.size(); ++track) write_track(track, events[track]);
    write_counters();
    flush();
  }

 private:
  std::vector<std::vector<std::uint32_t>> events_by_track() const {
    std::vector<std::size_t> counts(tracks_.names.size());
    for (const std::uint32_t track : tracks_.of_event) ++counts[track];
    std::vector<std::vector<std::uint32_t>> events(counts.size());
    for (std::size_t track = 0; track < counts.size(); ++track) events[track].reserve(counts[track]);
    for (std::uint32_t i = 0; i < tracks_.of_event.size(); ++i) events[tracks_.of_event[i]].push_back(i);
    return events;
  }

  // Numbers texts from 1 on; small numbers are short.
  class Interning {
   public:
    std::uint64_t id_of(const std::string& text) {
      return ids_.try_emplace(text, static_cast<std::uint64_t>(ids_.size()) + 1).first->second;
    }

   private:
    std::map<std::string, std::uint64_t> ids_;
  };
  struct NameIds {
    std::uint64_t text = 0, category = 0;
    std::string begin;  // What every begin of its spans holds of an event: type, name, category.
  };

  // Names with most events first, whose numbers then take one byte.
  void number_names() {
    std::vector<std::size_t> counts(record_.names.size()), order(record_.names.size());
    for (const TraceEvent& event : record_.events) ++counts[event.name];
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return counts[a] > counts[b]; });
    Interning texts, categories;
    name_ids_.resize(record_.names.size());
    for (const std::size_t name : order) {
      NameIds& ids = name_ids_[name];
      ids.text = texts.id_of(record_.names[name].text);
      ids.category = categories.id_of(record_.names[name].category);
      ProtobufMessage event;
      event.add_integer(event_field::kType, kSliceBegin);
      event.add_integer(event_field::kNameId, ids.text);
      event.add_integer(event_field::kCategoryIds, ids.category);
      ids.begin = event.bytes();
    }
  }

  void write_process() {
    ProtobufMessage process, track, packet;
    process.add_integer(process_field::kPid, kPid);
    process.add_text(process_field::kName, "headrace");
    process.add_text(process_field::kLabels, "recorder: headrace");
    track.add_integer(track_field::kUuid, kProcessUuid);
    track.add_message(track_field::kProcess, process);
    packet.add_message(packet_field::kTrackDescriptor, track);
    put_packet(packet);
  }

  // Opens a sequence: its clock, its defaults, and the names of its events.
  void open_sequence(std::uint64_t sequence, std::uint64_t track_uuid, const std::vector<std::uint32_t>& events) {
    ProtobufMessage delta, monotonic, snapshot, packet;
    delta.add_integer(1, kDeltaClock);
    delta.add_integer(2, static_cast<std::uint64_t>(record_.start_ns));
    delta.add_integer(3, 1);  // is_incremental
    monotonic.add_integer(1, kMonotonic);
    monotonic.add_integer(2, static_cast<std::uint64_t>(record_.start_ns));
    snapshot.add_message(1, delta);
    snapshot.add_message(1, monotonic);
    snapshot.add_integer(2, kMonotonic);  // primary_trace_clock
    packet.add_message(packet_field::kClockSnapshot, snapshot);
    packet.add_integer(packet_field::kSequence, sequence);
    packet.add_integer(packet_field::kSequenceFlags, kStateCleared);
    put_packet(packet);

    ProtobufMessage event_defaults, defaults, interned;
    event_defaults.add_integer(event_field::kTrack, track_uuid);
    defaults.add_integer(packet_field::kTimestampClock, kDeltaClock);
    defaults.add_message(packet_field::kTrackEvent, event_defaults);
    const auto intern = [&interned](int field, std::uint64_t id, const std::string& text) {
      ProtobufMessage entry;
      entry.add_integer(1, id);
      entry.add_text(2, utf8_of(text));
      interned.add_message(field, entry);
    };
    std::vector<bool> is_used(record_.names.size());
    for (const std::uint32_t index : events) is_used[record_.events[index].name] = true;
    std::map<std::uint64_t, std::size_t> categories, texts;  // To a name of the record that has it.
    for (std::size_t name = 0; name < is_used.size(); ++name) {
      if (!is_used[name]) continue;
      categories.try_emplace(name_ids_[name].category, name);
      texts.try_emplace(name_ids_[name].text, name);
    }
    for (const auto& entry : categories) intern(1, entry.first, record_.names[entry.second].category);
    for (const auto& entry : texts) intern(2, entry.first, record_.names[entry.second].text);
    intern(3, kValueId, "value");
    packet.clear();
    packet.add_message(packet_field::kInterned, interned);
    packet.add_message(packet_field::kDefaults, defaults);
    packet.add_integer(packet_field::kSequence, sequence);
    packet.add_integer(packet_field::kSequenceFlags, kNeedsState);
    put_packet(packet);
    last_ns_ = 0;
  }

  void describe_track(std::uint64_t uuid, std::uint64_t parent, const std::string& name, bool is_counter) {
    ProtobufMessage track, packet;
    track.add_integer(track_field::kUuid, uuid);
    track.add_integer(track_field::kParent, parent);
    track.add_text(track_field::kName, utf8_of(name));
    if (is_counter) {
      track.add_message(track_field::kCounter, {});
    } else {
      ProtobufMessage thread;
      thread.add_integer(1, kPid);
      thread.add_integer(2, uuid);  // Not the process's number, which would make it the main thread whatever its name.
      thread.add_text(5, utf8_of(name));
      track.add_message(track_field::kThread, thread);
    }
    packet.add_message(packet_field::kTrackDescriptor, track);
    put_packet(packet);
  }

  void write_track(std::uint32_t track, const std::vector<std::uint32_t>& events) {
    const std::uint64_t uuid = kFirstThreadUuid + track;
    describe_track(uuid, kProcessUuid, tracks_.names[track], false);
    open_sequence(uuid, uuid, events);
    std::vector<std::int64_t> open;  // Ends of the spans around, innermost last.
    std::map<std::uint32_t, std::uint64_t> gauges;
    const auto close_until = [&](std::int64_t ns) {
      for (; !open.empty() && open.back() <= ns; open.pop_back()) put_end(uuid, open.back());
    };
    for (const std::uint32_t index : events) {
      const TraceEvent& event = record_.events[index];
      close_until(event.begin_ns);
      if (event.end_ns > event.begin_ns) {
        put_begin(uuid, index);
        open.push_back(event.end_ns);
      } else {
        const auto [gauge, is_new] = gauges.try_emplace(event.name, next_uuid_);
        if (is_new) describe_track(next_uuid_++, uuid, record_.names[event.name].text, true);
        put_counter(uuid, gauge->second, event.begin_ns, event.value);
      }
    }
    close_until(std::numeric_limits<std::int64_t>::max());
  }

  // Totals over the whole record, and how much of it is missing.
  void write_counters() {
    if (record_.counters.empty() && record_.dropped == 0) return;
    const std::uint64_t sequence = next_uuid_++;
    open_sequence(sequence, kProcessUuid, {});
    const auto put = [&](const std::string& name, std::int64_t total) {
      describe_track(next_uuid_, kProcessUuid, name, true);
      put_counter(sequence, next_uuid_++, record_.duration_ns, total);
    };
    for (const auto& counter : record_.counters) put(counter.text, counter.total);
    if (record_.dropped != 0) put("dropped events", record_.dropped);
  }

  // The packets of events, written in place: there are two a span.

  // Where a packet's content of `size` bytes goes.
  char* begin_packet(std::size_t size) {
    char* out = reserve(size + 1 + varint_bytes(size));
    *out++ = kPacketTag;
    return put_varint(out, size);
  }

  std::size_t head_bytes(std::uint64_t sequence, std::int64_t ns) const {
    return 2 + varint_bytes(static_cast<std::uint64_t>(ns - last_ns_)) + varint_bytes(sequence);
  }
  char* put_head(char* out, std::uint64_t sequence, std::int64_t ns) {
    *out++ = packet_field::kTimestamp << 3;
    out = put_varint(out, static_cast<std::uint64_t>(ns - last_ns_));
    *out++ = packet_field::kSequence << 3;
    last_ns_ = ns;
    return put_varint(out, sequence);
  }

  // A packet of one event whose fields are `fixed` and `more`.
  void put_event(std::uint64_t sequence, std::int64_t ns, bool needs_names, std::string_view fixed,
                 std::string_view more) {
    const std::size_t event_bytes = fixed.size() + more.size();
    const std::size_t flag_bytes = needs_names ? 2 : 0;
    char* out = begin_packet(head_bytes(sequence, ns) + flag_bytes + 1 + varint_bytes(event_bytes) + event_bytes);
    out = put_head(out, sequence, ns);
    if (needs_names) {
      *out++ = packet_field::kSequenceFlags << 3;
      *out++ = static_cast<char>(kNeedsState);
    }
    *out++ = packet_field::kTrackEvent << 3 | 2;
    out = put_varint(out, event_bytes);
    std::memcpy(out, fixed.data(), fixed.size());
    if (!more.empty()) std::memcpy(out + fixed.size(), more.data(), more.size());
    used_ = static_cast<std::size_t>(out + event_bytes - piece_.data());
  }

  void put_begin(std::uint64_t sequence, std::uint32_t index) {
    const TraceEvent& event = record_.events[index];
    more_.clear();
    if (event.value != 0) {
      annotation_.clear();
      annotation_.add_integer(1, kValueId);
      annotation_.add_integer(4, static_cast<std::uint64_t>(event.value));
      more_.add_message(event_field::kDebugAnnotations, annotation_);
    }
    if (!flow_ends_.empty()) add_flows(index);
    put_event(sequence, event.begin_ns, true, name_ids_[event.name].begin, more_.bytes());
  }

  void add_flows(std::size_t index) {
    auto end = std::lower_bound(flow_ends_.begin(), flow_ends_.end(), index,
                                [](const FlowEnd& one, std::size_t event) { return one.event < event; });
    for (; end != flow_ends_.end() && end->event == index; ++end) {
      more_.add_fixed64(end->is_target ? event_field::kTerminatingFlows : event_field::kFlows, end->flow + 1);
    }
  }

  // Names nothing, so it needs no flag of names; that the sequence is whole, a file knows.
  void put_end(std::uint64_t sequence, std::int64_t ns) {
    static constexpr char kEnd[] = {event_field::kType << 3, kSliceEnd};
    put_event(sequence, ns, false, {kEnd, sizeof(kEnd)}, {});
  }

  void put_counter(std::uint64_t sequence, std::uint64_t track, std::int64_t ns, std::int64_t value) {
    more_.clear();
    more_.add_integer(event_field::kType, kCounterType);
    more_.add_integer(event_field::kTrack, track);
    more_.add_integer(event_field::kCounterValue, static_cast<std::uint64_t>(value));
    put_event(sequence, ns, true, more_.bytes(), {});
  }

  void put_packet(const ProtobufMessage& packet) {
    const std::string_view bytes = packet.bytes();
    char* out = begin_packet(bytes.size());
    std::memcpy(out, bytes.data(), bytes.size());
    used_ = static_cast<std::size_t>(out + bytes.size() - piece_.data());
  }

  // Room for `size` bytes behind what is used.
  char* reserve(std::size_t size) {
    if (used_ > kPieceBytes) flush();
    if (used_ + size > piece_.size()) piece_.resize(used_ + size);
    return piece_.data() + used_;
  }
  void flush() {
    append_(std::as_bytes(std::span{piece_.data(), used_}));
    used_ = 0;
  }

  static constexpr std::size_t kPieceBytes = 1 << 20;
  static constexpr std::size_t kPacketBytesMax = 4096;  // Of almost all; `reserve` makes room for longer ones.
  const TraceRecord& record_;
  const Tracks tracks_;
  const Append& append_;
  const std::vector<FlowEnd> flow_ends_;
  std::vector<NameIds> name_ids_;  // Of each name of the record.
  std::uint64_t next_uuid_ = 0;
  std::int64_t last_ns_ = 0;  // Of the sequence's last packet.
  ProtobufMessage more_, annotation_;
  std::vector<char> piece_;
  std::size_t used_ = 0;
};

}  // namespace

void encode_perfetto(const TraceRecord& record, std::span<const TraceFlow> flows,
                     const std::function<void(std::span<const std::byte>)>& append) {
  check_flows(record, flows);
  PerfettoWriter(record, flows, append).write();
}

void write_perfetto_trace(const TraceRecord& record, const std::filesystem::path& path,
                          std::span<const TraceFlow> flows) {
  write_file(path, [&](const auto& append) { encode_perfetto(record, flows, append); });
}

}  // namespace headrace
