// Keeps what a running Trace holds of the last minute ready, and writes it to a file when something went wrong.
//
// The loop that records waits for nothing: a thread of the recorder copies the rings while they go on
// (Trace::recent()), sorts and writes. What a dump needs of memory is some times what the rings hold, while it is
// written; give the Trace a memory_max, kFlightMemory as a rule.
#pragma once

#include <headrace/trace.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace headrace {

inline constexpr std::int64_t kFlightMemory = std::int64_t{64} << 20;  // 64 MiB: two million events.

struct FlightRecorderOptions {
  std::filesystem::path folder{};           // Is made where it is not there.
  std::int64_t last_ns = 60'000'000'000;    // What a dump reaches back, as far as the rings do. Above 0.
  double slow_step_factor = 3;              // A step above this times the median is slow; 0: none is. Else above 1.
  std::int64_t slow_step_min_ns = 1000000;  // And takes at least this: of shorter ones the scheduler's turns are most.
  std::int64_t dumps_max = 16;              // Files that one recorder writes at most, 1 to 1000.
  int signal = 0;                           // One that asks for a dump, as SIGUSR2; 0: none.
};

// One at a time in a process, no longer than its Trace records. Dumps are Chrome traces named "flight-NN-REASON.json",
// written aside and renamed; NN counts from 0, and an existing file of that name is replaced.
class FlightRecorder {
 public:
  // Error{invalid_argument}: an option outside its range, or there is a recorder. Error{io}: the folder cannot be made,
  // or the signal cannot be caught: it is SIGKILL, or another handler was set over an earlier recorder's. A handler
  // that the signal had is called, too, and is put back at the end.
  FlightRecorder(const Trace& trace, FlightRecorderOptions options);
  // Writes a dump "exception" where the stack is unwound by one that was thrown since; waits for the last dump.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // A step took so long: asks for a dump where that is slow beside the ones before, 20 at least, and last_ns of steps
  // have gone by since the last slow one. For one thread; tens of nanoseconds.
  void end_step(std::int64_t duration_ns) noexcept;
  // Asks for a dump and goes on; of several requests that wait the first one's reason holds. `reason` is a static text.
  // For any thread and for signal handlers: it takes no lock and allocates nothing.
  void request(const char* reason) noexcept;
  // Writes a dump before it returns, and tells its path; empty: dumps_max are written, or it has ended.
  // For any thread. Error{io}.
  std::string dump(const std::string& reason);

  struct Status {
    struct Dump {
      std::string path, reason;
      std::int64_t events = 0, dropped = 0;
    };
    std::vector<Dump> dumps;      // Written, oldest first.
    std::int64_t refused = 0;     // Beyond dumps_max.
    std::int64_t slow_steps = 0;  // Seen, whether dumped or not.
    std::string problem;          // Why the last dump that failed was not written; empty: none failed.
  };
  Status status() const;  // For any thread.
  Status end();           // Waits for what was asked for, and writes nothing more. The destructor does no more then.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
