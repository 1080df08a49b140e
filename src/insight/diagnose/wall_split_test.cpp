#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/wall_split.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace headrace {
namespace {

// A record built on a clock of whole milliseconds that the test moves.
class Loop {
 public:
  Loop() { record_.threads = {"main", "other"}; }

  Loop& part(const SpanName& name, std::int64_t ms, std::uint32_t thread = 0) {
    add(name, now_, now_ + ms, thread);
    if (thread == 0) now_ += ms;
    return *this;
  }
  Loop& gap(std::int64_t ms) {
    now_ += ms;
    return *this;
  }
  // A training step: 2 waiting, 1 gap, 3 transfer, 5 forward, 7 backward, 1 gap, 4 optimizer, `behind` gap.
  Loop& step(std::int64_t behind = 0) {
    const std::int64_t begin = now_;
    part(step::kDataWait, 2).gap(1).part(step::kTransfer, 3).part(step::kForward, 5).part(step::kBackward, 7).gap(1);
    part(step::kOptimizer, 4).gap(behind);
    add(step::kStep, begin, now_, 0);
    return *this;
  }
  Loop& gauge(const SpanName& name, std::int64_t value) {
    record_.events.push_back({index_of(name), 0, now_ * 1'000'000, now_ * 1'000'000, value});
    return *this;
  }

  TraceRecord record() {
    record_.duration_ns = now_ * 1'000'000;
    std::stable_sort(record_.events.begin(), record_.events.end(), [](const TraceEvent& a, const TraceEvent& b) {
      return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
    });
    return record_;
  }

 private:
  void add(const SpanName& name, std::int64_t begin_ms, std::int64_t end_ms, std::uint32_t thread) {
    record_.events.push_back({index_of(name), thread, begin_ms * 1'000'000, end_ms * 1'000'000, 0});
  }
  std::uint32_t index_of(const SpanName& name) {
    for (std::uint32_t i = 0; i < record_.names.size(); ++i) {
      if (record_.names[i].text == name.text && record_.names[i].category == name.category) return i;
    }
    record_.names.push_back({name.text, name.category});
    return static_cast<std::uint32_t>(record_.names.size()) - 1;
  }

  TraceRecord record_;
  std::int64_t now_ = 0;
};

std::int64_t ms(double seconds) {
  return std::llround(seconds * 1e3);
}

// data wait, transfer, forward, backward, optimizer, validation, checkpoint, python, other; all in milliseconds.
std::vector<std::int64_t> parts(const WallSplit& split) {
  return {ms(split.data_wait_s),  ms(split.transfer_s),  ms(split.forward_s),
          ms(split.backward_s),   ms(split.optimizer_s), ms(split.validation_s),
          ms(split.checkpoint_s), ms(split.python_s),    ms(split.other_s)};
}

std::int64_t sum(const WallSplit& split) {
  std::int64_t total = ms(split.setup_s) + ms(split.after_s);
  for (const std::int64_t part : parts(split)) total += part;
  return total;
}

using List = std::vector<std::int64_t>;

TEST(WallSplit, EachPlantedDelayLandsWhereItBelongs) {
  Loop loop;
  loop.gap(1000).step(10).step(20).step();  // Python: 1 + 1 + 10, 1 + 1 + 20, 1 + 1.
  loop.part(loop::kEpochEnd, 30);           // Data wait.
  loop.gap(40).part(step::kDataWait, 50).part(step::kTransfer, 60).gap(70).part(loop::kEvaluation, 80).gap(90);
  loop.part(step::kDataWait, 100).part(loop::kEvaluation, 110).part(loop::kEpochEnd, 120);  // Validation but the 40.
  loop.gap(130).part(loop::kCheckpoint, 140).gap(150).step().gap(2000);
  const WallSplit split = split_wall(loop.record());
  EXPECT_EQ(ms(split.setup_s), 1000);
  EXPECT_EQ(ms(split.after_s), 2000);
  EXPECT_EQ(parts(split), (List{4 * 2 + 30, 4 * 3, 4 * 5, 4 * 7, 4 * 4, 50 + 60 + 70 + 80 + 90 + 100 + 110 + 120, 140,
                                4 * 2 + 30 + 40 + 130 + 150, 0}));
  EXPECT_EQ(sum(split), ms(split.total_s));
}

TEST(WallSplit, AForwardThatTrainsNothingIsValidationAndOneOfAStepIsNot) {
  Loop loop;
  loop.step().part(step::kDataWait, 10).part(step::kForward, 20).part(step::kDataWait, 30).part(step::kForward, 40);
  loop.step();
  const WallSplit split = split_wall(loop.record());
  EXPECT_EQ(ms(split.validation_s), 100);
  EXPECT_EQ(ms(split.forward_s), 10);
  EXPECT_EQ(ms(split.data_wait_s), 4);
}

TEST(WallSplit, WaitsForTheNextEpochsBatchesAreNoValidation) {
  Loop loop;
  loop.step().part(loop::kEpochEnd, 5).part(step::kDataWait, 6).part(loop::kEvaluation, 7).part(loop::kEpochEnd, 8);
  loop.step().part(loop::kEpochEnd, 9);
  const WallSplit split = split_wall(loop.record());
  EXPECT_EQ(ms(split.validation_s), 6 + 7 + 8);
  EXPECT_EQ(ms(split.data_wait_s), 2 * 2 + 5 + 9);
}

TEST(WallSplit, WhatFullRingsLostIsOtherAndNotSetup) {
  Loop loop;
  loop.gap(500).step();
  TraceRecord record = loop.record();
  record.dropped = 3;
  const WallSplit split = split_wall(record);
  EXPECT_EQ(ms(split.other_s), 500);
  EXPECT_EQ(split.setup_s, 0);
  EXPECT_EQ(sum(split), ms(split.total_s));
}

TEST(WallSplit, OverlapsCountOnceAndOtherThreadsNot) {
  Loop loop;
  loop.step();
  TraceRecord record = loop.record();
  const TraceEvent forward = *std::find_if(record.events.begin(), record.events.end(), [&](const TraceEvent& event) {
    return record.names[event.name].text == std::string("forward");
  });
  record.events.push_back({forward.name, 0, forward.begin_ns + 1'000'000, forward.end_ns, 0});
  record.events.push_back({forward.name, 1, forward.begin_ns, forward.end_ns, 0});
  EXPECT_EQ(parts(split_wall(record)), (List{2, 3, 5, 7, 4, 0, 0, 2, 0}));
}

TEST(WallSplit, AModelThatIsMovedBeforeTheFirstBatchIsSetUp) {
  Loop loop;
  loop.gap(10).part(step::kTransfer, 20).part(loop::kCheckpoint, 30).gap(40).step();
  const WallSplit split = split_wall(loop.record());
  EXPECT_EQ(ms(split.setup_s), 100);
  EXPECT_EQ(parts(split), (List{2, 3, 5, 7, 4, 0, 0, 2, 0}));
}

TEST(WallSplit, WithoutPartsAllIsSetupAndCorruptRecordsAreRefused) {
  Loop loop;
  EXPECT_EQ(ms(split_wall(loop.gap(70).record()).setup_s), 70);
  TraceRecord record = loop.step().record();
  record.events.front().name = 99;
  EXPECT_THROW(static_cast<void>(split_wall(record)), Error);
  EXPECT_THROW(static_cast<void>(waits_in(record)), Error);
}

TEST(WallSplit, SharesAreOfTheLoopAndWhatNobodyKnowsIsNull) {
  Loop loop;
  loop.gap(1000).step().gap(1000);
  const auto document = nlohmann::ordered_json::parse(json_text(split_wall(loop.record())));
  double shares = 0;
  for (const auto& share : document["share"]) shares += share.get<double>();
  EXPECT_NEAR(shares, 1, 1e-9);
  EXPECT_NEAR(document["share"]["backward"].get<double>(), 7.0 / 23, 1e-9);
  EXPECT_TRUE(document["cpu_taken_s"].is_null());
  const auto empty = nlohmann::ordered_json::parse(json_text(split_wall(Loop{}.record())));
  EXPECT_TRUE(empty["share"]["python"].is_null());
}

TEST(Waits, AreToldApartAndWhatNobodyRecordedIsUnavailable) {
  constexpr SpanName kBatch{"wait_for_batch", "wait"}, kWorker{"wait_for_worker", "wait"},
      kRoom{"wait_for_room", "wait"};
  constexpr SpanName kSameTextNoWait{"wait_for_room", "work"};
  Loop loop;
  loop.part(kBatch, 5).part(kWorker, 6, 1).part(kRoom, 7, 1).part(kRoom, 8, 1).part(kSameTextNoWait, 100);
  const Waits without = waits_in(loop.record());
  EXPECT_EQ(ms(without.empty_queue_s.value()), 11);
  EXPECT_EQ(ms(without.full_queue_s.value()), 15);
  EXPECT_FALSE(without.lock_s || without.io_s || without.cpu_taken_s);
  loop.gauge(loop::kCpuTaken, 3'000'000).gap(1).gauge(loop::kCpuTaken, 4'000'000);
  EXPECT_EQ(ms(waits_in(loop.record()).cpu_taken_s.value()), 7);
  EXPECT_EQ(ms(split_wall(loop.record()).cpu_taken_s.value()), 7);
  const auto document = nlohmann::ordered_json::parse(json_text(without));
  EXPECT_TRUE(document["lock_s"].is_null());
  EXPECT_TRUE(document["why_no_lock"].get<std::string>().starts_with("no Loader of headrace's ran"));
  EXPECT_TRUE(document["why_no_io"].get<std::string>().starts_with("no Loader of headrace's ran"));
  EXPECT_NEAR(document["full_queue_s"].get<double>(), 0.015, 1e-12);
}

constexpr SpanName kChunk{"load_chunk", "work"}, kRead{"io_read", "wait"}, kLock{"lock_loader", "wait"};

TEST(Waits, OfALoaderThatTellsThemWhatDidNotHappenIsZero) {
  Loop loop;
  loop.part(kChunk, 9, 1);
  const Waits none = waits_in(loop.record());
  for (const auto& sum : {none.empty_queue_s, none.full_queue_s, none.lock_s, none.io_s}) EXPECT_EQ(sum.value(), 0);
  EXPECT_EQ(none.why_no_lock + none.why_no_io, "");
  EXPECT_FALSE(none.cpu_taken_s);
  const Waits some = waits_in(loop.part(kRead, 4, 1).gap(5).part(kLock, 3, 1).part(kLock, 2).record());
  EXPECT_EQ(ms(some.io_s.value()), 4);
  EXPECT_EQ(ms(some.lock_s.value()), 5);
  const auto document = nlohmann::ordered_json::parse(json_text(some));
  EXPECT_NEAR(document["io_s"].get<double>(), 0.004, 1e-12);
  EXPECT_TRUE(document["why_no_io"].is_null());
}

TEST(Waits, WithinAnotherSpanCountOnce) {
  constexpr SpanName kWorker{"wait_for_worker", "wait"};
  Loop loop;
  loop.part(kRead, 10, 1).part(kWorker, 3, 1);
  const Waits waits = waits_in(loop.record());
  EXPECT_EQ(ms(waits.io_s.value()), 7);
  EXPECT_EQ(ms(waits.empty_queue_s.value()), 3);
}

TEST(Waits, OfReadsByPythonAreUnavailable) {
  for (const char* by : {"read_by_worker", "read_by_python"}) {
    Loop loop;
    loop.part(kChunk, 20, 1).part(kRead, 10, 1).part({by, "work"}, 9, 1);
    const Waits waits = waits_in(loop.record());
    EXPECT_FALSE(waits.io_s);
    EXPECT_TRUE(waits.why_no_io.starts_with("a data set in Python reads"));
    EXPECT_EQ(waits.lock_s.value(), 0);
  }
}

}  // namespace
}  // namespace headrace
