#include "insight/export/perfetto.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error_of.h"
#include "core/base/files.h"
#include "core/base/temporary_folder.h"
#include "insight/export/wire_fields.h"

namespace headrace {
namespace {

using testing::ElementsAre;

std::string encoded(const TraceRecord& record, std::span<const TraceFlow> flows = {}) {
  std::string bytes;
  encode_perfetto(record, flows, [&](std::span<const std::byte> piece) {
    bytes.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return bytes;
}

// What Perfetto's published protos say that a reader does: clocks by sequence, names by sequence, tracks by their uuid.
class Reader {
 public:
  explicit Reader(std::string bytes) : bytes_(std::move(bytes)) {
    for (const WireField& packet : wire_fields(bytes_)) {
      EXPECT_EQ(packet.number, 1U);
      read(packet.bytes);
    }
  }

  std::vector<std::string> events;  // In the file's order: "BEGIN main 100 forward (step) value=7".

 private:
  struct Sequence {
    std::uint64_t now = 0;
    std::uint64_t track = 0;
    bool has_state = false;
    std::map<std::uint64_t, std::string> categories, names, annotations;
  };

  void read(std::string_view packet) {
    Sequence* sequence = has_wire_field(packet, 10) ? &sequences_[wire_field(packet, 10).integer] : nullptr;
    const std::uint64_t flags = has_wire_field(packet, 13) ? wire_field(packet, 13).integer : 0;
    if (flags & 1) *sequence = {0, 0, true, {}, {}, {}};
    for (const WireField& field : wire_fields(packet)) {
      if (field.number == 60) tracks_[wire_field(field.bytes, 1).integer] = name_of(field.bytes);
      if (field.number == 6) read_clocks(*sequence, field.bytes);
      if (field.number == 12) read_names(*sequence, field.bytes);
      if (field.number == 59) {
        EXPECT_EQ(wire_field(field.bytes, 58).integer, 64U);
        sequence->track = wire_field(wire_field(field.bytes, 11).bytes, 11).integer;
      }
      if (field.number == 11) {
        EXPECT_TRUE(sequence->has_state);
        sequence->now += wire_field(packet, 8).integer;
        EXPECT_TRUE(!has_wire_field(field.bytes, 10) || (flags & 2) != 0);
        read_event(*sequence, field.bytes);
      }
    }
  }

  static std::string name_of(std::string_view track) {
    if (has_wire_field(track, 3)) return std::string(wire_field(wire_field(track, 3).bytes, 6).bytes);
    return std::string(wire_field(track, 2).bytes);
  }

  static void read_clocks(Sequence& sequence, std::string_view snapshot) {
    EXPECT_EQ(wire_field(snapshot, 2).integer, 3U);
    std::map<std::uint64_t, std::uint64_t> clocks;
    for (const WireField& field : wire_fields(snapshot)) {
      if (field.number == 1) clocks[wire_field(field.bytes, 1).integer] = wire_field(field.bytes, 2).integer;
    }
    EXPECT_EQ(clocks.at(64), clocks.at(3));
    sequence.now = clocks.at(64);
  }

  static void read_names(Sequence& sequence, std::string_view interned) {
    std::map<std::uint64_t, std::string>* const tables[] = {&sequence.categories, &sequence.names,
                                                            &sequence.annotations};
    for (const WireField& field : wire_fields(interned)) {
      tables[field.number - 1]->emplace(wire_field(field.bytes, 1).integer, wire_field(field.bytes, 2).bytes);
    }
  }

  void read_event(Sequence& sequence, std::string_view event) {
    const std::uint64_t type = wire_field(event, 9).integer;
    const std::uint64_t track = has_wire_field(event, 11) ? wire_field(event, 11).integer : sequence.track;
    EXPECT_TRUE(tracks_.contains(track));
    std::string line = fmt::format("{} {} {}",
                                   type == 1   ? "BEGIN"
                                   : type == 2 ? "END"
                                               : "COUNTER",
                                   tracks_[track], sequence.now);
    if (type == 1) {
      line += fmt::format(" {} ({})", sequence.names.at(wire_field(event, 10).integer),
                          sequence.categories.at(wire_field(event, 3).integer));
    }
    for (const WireField& field : wire_fields(event)) {
      if (field.number == 4) {
        line += fmt::format(" {}={}", sequence.annotations.at(wire_field(field.bytes, 1).integer),
                            static_cast<std::int64_t>(wire_field(field.bytes, 4).integer));
      }
      if (field.number == 30) line += fmt::format(" {}", static_cast<std::int64_t>(field.integer));
      if (field.number == 47) line += fmt::format(" flow {}", field.integer);
      if (field.number == 48) line += fmt::format(" ends flow {}", field.integer);
    }
    events.push_back(line);
  }

  const std::string bytes_;
  std::map<std::uint64_t, Sequence> sequences_;
  std::map<std::uint64_t, std::string> tracks_;
};

TraceRecord sample() {
  TraceRecord record;
  record.names = {{"step", "step"}, {"forward", "step"}, {"fill", "mark"}};
  record.threads = {"main", "loader 0"};
  record.events = {{0, 0, 100, 1000, 7}, {1, 0, 100, 400, 0},   {2, 1, 150, 150, -3},
                   {1, 0, 400, 1000, 0}, {1, 1, 500, 9000, -1}, {0, 0, 1000, 2000, 0}};
  record.counters = {{"bytes_read", 123}};
  record.dropped = 2;
  record.duration_ns = 10'000;
  record.start_ns = 5'000'000'000;
  return record;
}

TEST(Perfetto, HoldsSpansNestedByThreadGaugesAndTotals) {
  EXPECT_THAT(Reader(encoded(sample())).events,
              ElementsAre("BEGIN main 5000000100 step (step) value=7", "BEGIN main 5000000100 forward (step)",
                          "END main 5000000400", "BEGIN main 5000000400 forward (step)", "END main 5000001000",
                          "END main 5000001000", "BEGIN main 5000001000 step (step)", "END main 5000002000",
                          "COUNTER fill 5000000150 -3", "BEGIN loader 0 5000000500 forward (step) value=-1",
                          "END loader 0 5000009000", "COUNTER bytes_read 5000010000 123",
                          "COUNTER dropped events 5000010000 2"));
}

TEST(Perfetto, FlowsStartAndEndAtTheirSpans) {
  const TraceFlow flows[] = {{0, 4}, {1, 4}};
  const auto events = Reader(encoded(sample(), flows)).events;
  EXPECT_THAT(events, testing::Contains("BEGIN main 5000000100 step (step) value=7 flow 1"));
  EXPECT_THAT(events, testing::Contains("BEGIN main 5000000100 forward (step) flow 2"));
  EXPECT_THAT(events, testing::Contains("BEGIN loader 0 5000000500 forward (step) value=-1 ends flow 1 ends flow 2"));
  const TraceFlow wrong[] = {{4, 0}};
  error_of(ErrorCode::invalid_argument, [&] { encoded(sample(), wrong); });
}

TEST(Perfetto, SpanThatOutlivesTheOneAroundItHasATrackOfItsOwn) {
  TraceRecord record;
  record.names = {{"a", "work"}};
  record.threads = {"main"};
  record.events = {{0, 0, 0, 10, 0}, {0, 0, 5, 15, 0}};
  EXPECT_THAT(Reader(encoded(record)).events,
              ElementsAre("BEGIN main 0 a (work)", "END main 10", "BEGIN main (2) 5 a (work)", "END main (2) 15"));
}

TEST(Perfetto, ASpanTakesAtMost30BytesAndLongTracesComeInPieces) {
  TraceRecord record;
  record.names = {{"outer", "step"}, {"inner", "work"}};
  record.threads = {"main"};
  constexpr std::int64_t kSpans = 200'000;
  for (std::int64_t i = 0; i < kSpans / 2; ++i) {
    record.events.push_back({0, 0, i * 4'000'000, i * 4'000'000 + 2'000'000, 0});
    record.events.push_back({1, 0, i * 4'000'000 + 5, i * 4'000'000 + 1'900'000, 0});
  }
  int pieces = 0;
  std::int64_t bytes = 0;
  encode_perfetto(record, {}, [&](std::span<const std::byte> piece) {
    ++pieces;
    bytes += static_cast<std::int64_t>(piece.size());
  });
  EXPECT_GT(pieces, 3);
  EXPECT_LE(bytes, kSpans * 30);
  const std::string whole = encoded(record);
  EXPECT_EQ(wire_fields(whole).size(), static_cast<std::size_t>(2 * kSpans) + 4);  // Process, track, clock, names.
}

TEST(Perfetto, NamesOfAnyLengthAndBytesAreTaken) {
  TraceRecord record;
  record.names = {{std::string(3'000'000, 'x'), "work"}, {"bad \xff", "\xc3"}};
  record.threads = {"\xfe"};
  record.events = {{0, 0, 0, 10, 0}, {1, 0, 2, 5, 0}};
  const auto events = Reader(encoded(record)).events;
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[1], "BEGIN ? 2 bad ? (?)");
}

TEST(Perfetto, ANameIsInternedOnceWhateverItsCategories) {
  TraceRecord record;
  record.threads = {"main"};
  for (std::uint32_t i = 0; i < 3; ++i) {
    record.names.push_back({"aten::mm", fmt::format("[{}, {}]", i, i)});
    record.events.push_back({i, 0, 10 * i, 10 * i + 5, 0});
  }
  const std::string bytes = encoded(record);
  EXPECT_EQ(bytes.find("aten::mm"), bytes.rfind("aten::mm"));
  EXPECT_THAT(Reader(bytes).events, testing::Contains("BEGIN main 10 aten::mm ([1, 1])"));
}

TEST(Perfetto, FileHoldsWhatIsEncoded) {
  const TemporaryFolder folder;
  write_perfetto_trace(sample(), folder.path() / "trace.pftrace");
  EXPECT_EQ(read_file(folder.path() / "trace.pftrace", 1 << 20), encoded(sample()));
  EXPECT_NO_THROW(Reader(encoded({})));
}

}  // namespace
}  // namespace headrace
