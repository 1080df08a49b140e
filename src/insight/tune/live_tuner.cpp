#include <headrace/live_tuner.h>

#include <utility>

#include "core/base/clock.h"
#include "core/base/fail.h"
#include "insight/tune/live_search.h"

namespace headrace {
namespace {

void check_at_least(const char* name, double value, double least) {
  if (value >= least) return;  // Not of NaN.
  fail(ErrorCode::invalid_argument, "tune: {}: wanted at least {:g}, found {:g}", name, least, value);
}

LiveOptions checked(LiveOptions options) {
  check_at_least("gain_min", options.gain_min, 0);
  check_at_least("lost_s", options.lost_s, 0);
  check_at_least("lost_share", options.lost_share, 0);
  check_at_least("recheck_s", options.recheck_s, 0);
  check_at_least("spent_s", options.spent_s, 0);
  return options;
}

}  // namespace

struct LiveTuner::Impl {
  LiveSearch search;
};

LiveTuner::LiveTuner(LiveLoop& loop, std::vector<Candidate> candidates, LiveOptions options, std::uint64_t seed,
                     LiveProgress progress, Clock clock) {
  LiveSearch::LoadReader read_load;
  if (!clock) {
    clock = [] { return static_cast<double>(monotonic_ns()) * 1e-9; };
    read_load = [] { return read_cpu_load(); };
  }
  impl_.reset(new Impl{LiveSearch(loop, std::move(candidates), checked(std::move(options)), seed, std::move(progress),
                                  std::move(clock), std::move(read_load))});
}

LiveTuner::~LiveTuner() = default;

bool LiveTuner::keeps_call() const {
  return impl_->search.keeps_call();
}

void LiveTuner::before_update() {
  impl_->search.before_update();
}

void LiveTuner::after_update(const LiveUnit& unit) {
  impl_->search.after_update(unit);
}

void LiveTuner::note_update(std::int64_t update) {
  impl_->search.note_update(update);
}

void LiveTuner::failed(ErrorCode code, const std::string& sentence, const std::vector<std::string>& keys) {
  impl_->search.failed(code, sentence, keys);
}

bool LiveTuner::watching() const {
  return impl_->search.watching();
}

void LiveTuner::stop(const std::string& why) {
  impl_->search.stop(why);
}

void LiveTuner::undo() {
  impl_->search.undo();
}

const Settings& LiveTuner::in_force() const {
  return impl_->search.in_force();
}

LiveLedger LiveTuner::ledger() const {
  return impl_->search.ledger();
}

}  // namespace headrace
