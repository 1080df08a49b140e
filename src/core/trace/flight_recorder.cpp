#include <headrace/duration_histogram.h>
#include <headrace/flight_recorder.h>
#include <semaphore.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/fail.h"
#include "core/base/files.h"

namespace headrace {
namespace {

constexpr std::int64_t kStepsBefore = 20;  // That a slow step is slow beside.
constexpr std::int64_t kDumpsMost = 1000;
constexpr std::size_t kReasonBytes = 40;  // Of a file's name.

// What asks for a dump. Never destroyed: a handler may still run on another thread when a recorder has ended.
struct Bell {
  Bell() {
    const int failed = ::sem_init(&wake, 0, 0);
    HEADRACE_CHECK(failed == 0, "no semaphore: {}", system_message(errno));
  }
  void ring(const char* why) noexcept {
    const char* none = nullptr;
    if (reason.compare_exchange_strong(none, why)) ::sem_post(&wake);  // Else a dump is asked for already.
  }

  ::sem_t wake;
  std::atomic<const char*> reason{nullptr};
  std::atomic<bool> taken{false};  // By a recorder.
  std::atomic<bool> ending{false};
};

Bell& bell() {
  static Bell& bell = *new Bell;
  return bell;
}

// What the signal's handler must know. Set before it is installed, and by no later recorder while it runs.
constinit std::atomic<Bell*> signalled{nullptr};
// Another handler stood over ours when a recorder ended, and may call it: were it `action_before`, they would call
// each other without end.
constinit std::atomic<bool> is_chained{false};
struct sigaction action_before {};

void on_signal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  if (Bell* rung = signalled.load()) rung->ring("signal");
  if ((action_before.sa_flags & SA_SIGINFO) != 0) {
    if (action_before.sa_sigaction != nullptr) action_before.sa_sigaction(number, info, context);
  } else if (action_before.sa_handler != SIG_DFL && action_before.sa_handler != SIG_IGN) {
    action_before.sa_handler(number);
  }
  errno = error;
}

void check(const FlightRecorderOptions& options) {
  const auto refuse = [](const char* name, const std::string& found, const char* wanted) {
    fail(ErrorCode::invalid_argument, "flight recorder: {} is {}, wanted {}", name, found, wanted);
  };
  if (options.folder.empty()) refuse("folder", "empty", "a folder's path");
  if (options.last_ns <= 0) refuse("last_ns", std::to_string(options.last_ns), "a time above 0");
  if (!(options.slow_step_factor == 0 || options.slow_step_factor > 1)) {
    refuse("slow_step_factor", fmt::format("{}", options.slow_step_factor), "0 or a number above 1");
  }
  if (options.slow_step_min_ns < 0) {
    refuse("slow_step_min_ns", std::to_string(options.slow_step_min_ns), "at least 0");
  }
  if (options.dumps_max < 1 || options.dumps_max > kDumpsMost) {
    refuse("dumps_max", std::to_string(options.dumps_max), "1 to 1000");
  }
  if (options.signal < 0 || options.signal > SIGRTMAX) {
    refuse("signal", std::to_string(options.signal), "0 or a signal's number");
  }
}

std::string name_of(std::string reason) {
  for (char& byte : reason) {
    const bool plain = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9');
    if (!plain) byte = '-';
  }
  return reason.substr(0, kReasonBytes);
}

}  // namespace

struct FlightRecorder::Impl {
  Impl(const Trace& recorded, FlightRecorderOptions given) : trace(recorded), options(std::move(given)) {}

  // nullopt: dumps_max are written.
  std::optional<std::string> write(const std::string& reason) {
    const std::lock_guard one_at_a_time(writing);
    std::int64_t number = 0;
    {
      const std::lock_guard lock(mutex);
      number = static_cast<std::int64_t>(told.dumps.size());
      if (number >= options.dumps_max) {
        ++told.refused;
        return std::nullopt;
      }
    }
    const std::string path = (options.folder / fmt::format("flight-{:02}-{}.json", number, name_of(reason))).string();
    const TraceRecord record = trace.recent(options.last_ns);
    write_chrome_trace(record, path);
    const std::lock_guard lock(mutex);
    told.dumps.push_back({path, reason, static_cast<std::int64_t>(record.events.size()), record.dropped});
    return path;
  }

  void write_or_note(const std::string& reason) noexcept {
    try {
      write(reason);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      told.problem = error.what();
    }
  }

  // Waits for the last dump. Once.
  void finish() {
    if (ended.exchange(true)) return;
    if (caught) put_action_back();
    bell().ending.store(true);
    ::sem_post(&bell().wake);
    writer.join();
    bell().taken.store(false);
  }

  void put_action_back() {
    struct sigaction now {};
    // Whoever has set another handler since keeps it; that one may call ours, which does nothing of its own then.
    if (::sigaction(options.signal, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
        now.sa_sigaction == on_signal) {
      ::sigaction(options.signal, &action_before, nullptr);
    } else {
      is_chained.store(true);
    }
    signalled.store(nullptr);
  }

  void run() {
    name_this_thread("flight recorder");
    for (;;) {
      while (::sem_wait(&bell().wake) != 0) {  // A signal's handler ran.
      }
      // First: what was asked for before the end is written.
      const bool ends = bell().ending.load();
      if (const char* reason = bell().reason.exchange(nullptr)) write_or_note(reason);
      if (ends) return;
    }
  }

  const Trace& trace;
  const FlightRecorderOptions options;
  const int thrown_before = std::uncaught_exceptions();
  // Of the loop's thread alone.
  DurationHistogram steps;
  std::int64_t steps_seen = 0;
  std::int64_t limit_ns = 0;       // Above it a step is slow; 0: nobody knows yet.
  std::int64_t since_slow_ns = 0;  // Steps' time since a slow one was dumped.
  bool any_slow = false;
  std::atomic<std::int64_t> slow_steps{0};

  std::mutex writing;  // Held while a dump is made.
  mutable std::mutex mutex;
  Status told;  // Guarded by mutex; but for slow_steps.
  bool caught = false;
  std::atomic<bool> ended{false};
  std::jthread writer;  // Last, so that it ends first.
};

FlightRecorder::FlightRecorder(const Trace& trace, FlightRecorderOptions options) {
  check(options);
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error) {
    fail(ErrorCode::io, "flight recorder: cannot make {}: {}", options.folder.string(), error.message());
  }
  if (bell().taken.exchange(true)) {
    fail(ErrorCode::invalid_argument, "flight recorder: there is one already; one at a time in a process");
  }
  try {
    impl_ = std::make_unique<Impl>(trace, std::move(options));
    bell().ending.store(false);
    bell().reason.store(nullptr);
    impl_->writer = std::jthread([impl = impl_.get()] { impl->run(); });
  } catch (...) {
    bell().taken.store(false);
    throw;
  }
  if (impl_->options.signal == 0) return;
  signalled.store(&bell());
  struct sigaction ours {};
  ours.sa_sigaction = on_signal;
  ours.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&ours.sa_mask);
  // Read before it is replaced: the handler calls what was there.
  if (is_chained.load()) errno = EBUSY;
  if (is_chained.load() || ::sigaction(impl_->options.signal, nullptr, &action_before) != 0 ||
      ::sigaction(impl_->options.signal, &ours, nullptr) != 0) {
    const int failed = errno;
    signalled.store(nullptr);
    impl_->finish();
    fail(ErrorCode::io, "flight recorder: cannot catch signal {}: {}", impl_->options.signal, system_message(failed));
  }
  impl_->caught = true;
}

FlightRecorder::~FlightRecorder() {
  if (!impl_->ended && std::uncaught_exceptions() > impl_->thrown_before) impl_->write_or_note("exception");
  impl_->finish();
}

FlightRecorder::Status FlightRecorder::end() {
  impl_->finish();
  return status();
}

void FlightRecorder::end_step(std::int64_t duration_ns) noexcept {
  Impl& all = *impl_;
  if (all.options.slow_step_factor == 0) return;
  all.since_slow_ns += std::max<std::int64_t>(duration_ns, 0);
  if (all.limit_ns > 0 && duration_ns > all.limit_ns && duration_ns >= all.options.slow_step_min_ns) {
    all.slow_steps.fetch_add(1, std::memory_order_relaxed);
    if (!all.any_slow || all.since_slow_ns >= all.options.last_ns) {
      all.any_slow = true;
      all.since_slow_ns = 0;
      request("slow step");
    }
  }
  all.steps.add(duration_ns);
  // The median moves slowly: a look at every 20th step.
  if (++all.steps_seen % kStepsBefore == 0) {
    const double median = all.steps.quantile(0.5).value_or(0);
    all.limit_ns = static_cast<std::int64_t>(std::min(median * all.options.slow_step_factor, 9e18));
  }
}

void FlightRecorder::request(const char* reason) noexcept {
  bell().ring(reason);
}

std::string FlightRecorder::dump(const std::string& reason) {
  if (impl_->ended) return {};  // Its trace may be gone.
  return impl_->write(reason).value_or("");
}

FlightRecorder::Status FlightRecorder::status() const {
  const std::lock_guard lock(impl_->mutex);
  Status told = impl_->told;
  told.slow_steps = impl_->slow_steps.load(std::memory_order_relaxed);
  return told;
}

}  // namespace headrace
