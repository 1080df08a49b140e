#include "insight/tune/live_switch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t kTurnsLeft = 64;  // For pairs at hand, and for going back.

}  // namespace

LiveSwitch::LiveSwitch(LiveLoop& loop, std::size_t count, Clock clock)
    : loop_(loop), clock_(std::move(clock)), was_on_(count, false), switch_s_(count) {}

std::optional<LiveSwitch::Refusal> LiveSwitch::to(const Settings& wanted, const Changes& on, std::int64_t update,
                                                  std::string_view why) {
  if (wanted == in_force_) {
    on_ = on;
    for (const std::size_t change : on) was_on_[change] = true;
    return std::nullopt;
  }
  const double begin_s = clock_();
  const Settings before = in_force_;
  const Changes on_before = on_;
  std::optional<Refusal> refusal;
  try {
    loop_.apply(wanted);
    in_force_ = wanted;  // Whatever is thrown from here on, this is what holds.
    on_ = on;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::cancelled) throw;
    refusal = Refusal{error.code(), error.what()};  // An outcome of the trial: its caller settles the change.
  }
  if (loop_.agree(!refusal)) {
    note(on_before, update, why, clock_() - begin_s);
    return std::nullopt;
  }
  if (!refusal) {
    loop_.apply(before);
    in_force_ = before;
    on_ = on_before;
    refusal = Refusal{ErrorCode::internal, "another rank could not apply it"};
  }
  seconds_ += clock_() - begin_s;
  return refusal;
}

void LiveSwitch::alone_to(const Settings& wanted, std::int64_t update, std::string_view why) {
  const Changes on_before = on_;
  if (wanted != in_force_) {
    const double begin_s = clock_();
    loop_.apply(wanted);
    in_force_ = wanted;
    on_.clear();
    note(on_before, update, why, clock_() - begin_s);
  }
  on_.clear();
}

// A switch to what is in force now.
void LiveSwitch::note(const Changes& on_before, std::int64_t update, std::string_view why, double took_s) {
  Changes switched;
  std::set_symmetric_difference(on_.begin(), on_.end(), on_before.begin(), on_before.end(),
                                std::back_inserter(switched));
  for (const std::size_t change : switched) switch_s_[change] = std::min(switch_s_[change].value_or(took_s), took_s);
  for (const std::size_t change : on_) was_on_[change] = true;
  if (turns_.size() < LiveLedger::kTurnsMax) turns_.push_back({update, in_force_, std::string(why)});
  units_ = 0;
  seconds_ += took_s;
}

bool LiveSwitch::were_in_force(const Settings& settings) const {
  return std::any_of(turns_.begin(), turns_.end(), [&](const LiveTurn& turn) { return turn.settings == settings; });
}

bool LiveSwitch::is_half_full() const noexcept {
  return 2 * turns_.size() > LiveLedger::kTurnsMax;
}

bool LiveSwitch::is_full() const noexcept {
  return turns_.size() + kTurnsLeft > LiveLedger::kTurnsMax;
}

double LiveSwitch::take_seconds() noexcept {
  return std::exchange(seconds_, 0.0);
}

}  // namespace headrace
