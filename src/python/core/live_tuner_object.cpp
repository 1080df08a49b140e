#include "python/core/live_tuner_object.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <utility>

#include "python/core/errors.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

LiveTunerObject::LiveTunerObject(nb::object loop, std::vector<Candidate> candidates, LiveOptions options,
                                 std::uint64_t seed, nb::dict progress, nb::object clock)
    : loop_(std::move(loop)),
      progress_(std::move(progress)),
      clock_(std::move(clock)),
      candidates_(std::move(candidates)),
      tuner_(loop_, candidates_, std::move(options), seed, progress_of(), clock_of()) {}

void LiveTunerObject::tell(const char* kind, const std::string& text) const {
  from_python([&] {
    if (progress_.contains(kind)) progress_[kind](text);
  });
}

LiveProgress LiveTunerObject::progress_of() {
  LiveProgress progress;
  progress.began = [this](const std::string& sentence) { tell("began", sentence); };
  progress.judged = [this](const Quietness& found) {
    if (!found.quiet.value_or(true)) tell("machine", found.sentence);
  };
  progress.preparing = [this](const std::string& sentence) { tell("preparing", sentence); };
  progress.prepared = [this](const Candidate& candidate, double seconds) {
    from_python([&] {
      if (progress_.contains("prepared")) progress_["prepared"](candidate.key, seconds);
    });
  };
  progress.decided = [this](const Trial& trial) {
    tell("decided", fmt::format("{:<12} {}: {}", to_string(trial.verdict), trial.name, trial.sentence));
  };
  progress.ended = [this](const std::string& sentence) { tell("ended", sentence); };
  return progress;
}

LiveTuner::Clock LiveTunerObject::clock_of() const {
  if (clock_.is_none()) return {};
  return [this] { return from_python([this] { return real_of(clock_()); }); };
}

LiveResult LiveTunerObject::result(const LiveRun& run) const {
  return result_of(tuner_.ledger(), run, candidates_);
}

nb::object LiveTunerObject::trials() const {
  return trials_of(tuner_.ledger().ledger);
}

int LiveTunerObject::traverse(visitproc visit, void* arg) const {
  Py_VISIT(loop_.object().ptr());
  Py_VISIT(progress_.ptr());
  Py_VISIT(clock_.ptr());
  return 0;
}

void LiveTunerObject::let_go() {
  loop_.let_go();
  progress_ = nb::dict();
  clock_ = nb::none();
}

}  // namespace headrace::python
