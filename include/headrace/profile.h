// Which operators run in some steps of a loop, how long they take and what memory they keep: hr.profile of Python.
#pragma once

#include <headrace/profile_schedule.h>
#include <headrace/trace.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace headrace {

// Steps that were recorded one behind the other. operator_table(window.record) has the key averages, and
// export_trace(window.record, path, form) writes any form.
struct ProfileWindow {
  std::int64_t number = 0;      // From 1.
  std::int64_t first_step = 0;  // Its steps are spans operators::kStep of the record, beside the operators.
  std::int64_t steps = 0;       // That ended in it.
  TraceRecord record{};
};

struct ProfileOptions {
  std::optional<ProfileSchedule> schedule{};  // Without one all steps are one window.
  // Called by step() and stop() with each window once it is over and nothing is observed. It may call neither of them.
  std::function<void(const ProfileWindow&)> on_trace_ready{};
  bool record_shapes = false;   // Of the arguments.
  bool profile_memory = false;  // Bytes that each call keeps, and the running total; for tensors on the CPU.
  std::int64_t events_per_thread = 1 << 20;  // As in TraceOptions; a window that has more says so in record.dropped.
};

// Records the operators of the thread that made it, and of the backward passes that it starts:
//
//   hr::Profile profile{{.schedule = hr::ProfileSchedule{.wait = 1, .warmup = 1, .active = 3, .repeat = 2},
//                        .on_trace_ready = [](const hr::ProfileWindow& window) { ... }}};
//   for (...) {
//     train_step();
//     profile.step();
//   }
//   profile.stop();
//
// Made, told of steps and ended by one thread. Without a window or a warm-up nothing is observed. What an operator
// costs within one: some 0.1 us, and 32 bytes that stay until the window is over.
class Profile {
 public:
  // Begins with step 0. Error{invalid_argument}: a number of the schedule or events_per_thread is out of range; here
  // and in step(), where a window or warm-up begins: another Trace or profile records. Error{unsupported}, there, too:
  // memory, while a PyTorch profiler runs on this thread.
  explicit Profile(ProfileOptions options = {});
  // Ends the observation. A window that is not over is dropped, as behind an exception: see stop().
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // The end of a step: call it once after each one. What an exception leaves, its own or on_trace_ready's, is a profile
  // that is over, and observes nothing. Error{invalid_argument}: it is over.
  void step();
  // The end. A window that is not over is kept as far as it came. A second call does nothing.
  void stop();

  std::int64_t step_number() const;  // Of the step that goes on, from 0.
  // The last window that is over; nullptr: none is yet. Holds until the next one is over.
  const ProfileWindow* last_window() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
