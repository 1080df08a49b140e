#include "torch/train/device_timer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/clock.h"
#include "core/trace/span_end.h"

namespace headrace {
namespace {

// In the order of DevicePhase.
constexpr std::array<SpanName, kDevicePhases.size()> kSpans{
    SpanName{"device_transfer", "device"}, SpanName{"device_forward", "device"}, SpanName{"device_backward", "device"},
    SpanName{"device_optimizer", "device"}, SpanName{"device_replay", "device"}};

double ticks_between(TraceMoment from, TraceMoment to) {
  return static_cast<double>(static_cast<std::int64_t>(to.ticks - from.ticks));
}

}  // namespace

DeviceTimer::Clocks DeviceTimer::Clocks::now() {
  return {trace_moment(), monotonic_ns()};
}

DeviceTimer::DeviceTimer(Accelerator* accelerator, std::string track)
    : accelerator_(accelerator), track_name_(std::move(track)) {}

void DeviceTimer::set_wanted(bool wanted) {
  if (wanted && !is_wanted_) {
    waiting_.clear();
    times_ = {};
    last_ = {};
    last_read_.reset();
    starts_anew_ = true;
  }
  is_wanted_ = wanted;
}

DeviceTimer::Mark DeviceTimer::mark() const {
  const TraceMoment launched = trace_moment();  // Before it: the device cannot pass it earlier.
  return {accelerator_->moment(), launched};
}

void DeviceTimer::begin_step() {
  const bool is_on = is_wanted_ || std::any_of(kSpans.begin(), kSpans.end(), detail::records);
  last_ = {};
  if (!is_on) {
    starts_anew_ = true;
    return;
  }
  read();
  last_ = mark();
}

void DeviceTimer::end_phase(DevicePhase phase) {
  Mark now = mark();
  if (now.moment != nullptr && waiting_.size() >= kWaitingMost) {
    ++times_.dropped;
    starts_anew_ = true;  // What it took is no gap.
  } else if (now.moment != nullptr) {
    waiting_.push_back({last_, now, phase, std::exchange(starts_anew_, false)});
  }
  last_ = std::move(now);
}

const DeviceTimes& DeviceTimer::read() {
  while (!waiting_.empty() && waiting_.front().end.moment->is_passed()) {
    take(waiting_.front());
    waiting_.pop_front();
  }
  times_.waiting = static_cast<std::int64_t>(waiting_.size());
  return times_;
}

void DeviceTimer::take(const Queued& done) {
  const double seconds = done.end.moment->seconds_since(*done.begin.moment);
  DeviceTimes::Phase& phase = times_.phases[static_cast<std::size_t>(done.phase)];
  phase.seconds += seconds;
  ++phase.count;
  double gap = 0;
  if (done.starts_anew || last_read_ == nullptr) {
    at_s_ = 0;
    offset_s_.reset();
  } else if (done.begin.moment != last_read_) {
    gap = done.begin.moment->seconds_since(*last_read_);
  }
  const double begin_s = at_s_ + gap;
  at_s_ = begin_s + seconds;
  times_.seconds += gap + seconds;
  last_read_ = done.end.moment;
  add_span(done, begin_s, at_s_);
}

// The two clocks tell nothing of each other but this: the device cannot pass a moment before the host has queued it,
// and passes it then where it has nothing else to do. So the largest difference seen by now is theirs, or less by what
// the device had still to do.
void DeviceTimer::add_span(const Queued& done, double begin_s, double end_s) {
  const Clocks now = Clocks::now();
  if (now.ns <= start_.ns) return;
  const double ticks_per_s = ticks_between(start_.trace, now.trace) / (static_cast<double>(now.ns - start_.ns) / 1e9);
  const double launched_s = ticks_between(start_.trace, done.begin.launched) / ticks_per_s;
  offset_s_ = std::max(offset_s_.value_or(launched_s - begin_s), launched_s - begin_s);
  const SpanName& name = kSpans[static_cast<std::size_t>(done.phase)];
  if (!detail::records(name)) return;
  const auto moment_at = [&](double seconds) {
    return TraceMoment{start_.trace.ticks + static_cast<std::uint64_t>(std::max(seconds, 0.0) * ticks_per_s)};
  };
  // Phases follow each other, also where the difference or the clock's rate has just become another.
  const TraceMoment from{std::max(moment_at(*offset_s_ + begin_s).ticks, track_end_.ticks)};
  track_end_ = span_end(from, moment_at(*offset_s_ + end_s));
  if (!track_) track_.emplace(track_name_);
  track_->record(name, from, track_end_);
}

}  // namespace headrace
