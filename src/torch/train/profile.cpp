#include <headrace/operator_category.h>
#include <headrace/profile.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "core/base/fail.h"
#include "core/trace/span_end.h"
#include "torch/train/operator_spans.h"

namespace headrace {
namespace {

// What observes while a window, or its warm-up, goes on. Ends in the reverse order.
struct Recording {
  explicit Recording(const ProfileOptions& options)
      : trace({.events_per_thread = options.events_per_thread}),
        operators({.record_shapes = options.record_shapes, .profile_memory = options.profile_memory}) {}

  Trace trace;
  OperatorSpans operators;
};

bool is_kept(ProfileAction action) {
  return action == ProfileAction::record || action == ProfileAction::record_and_save;
}

}  // namespace

struct Profile::Impl {
  explicit Impl(ProfileOptions its_options) : options(std::move(its_options)) {}

  ProfileAction action_of_step() const {
    return options.schedule ? profile_action(*options.schedule, step) : ProfileAction::record;
  }

  // Into the step that `step` is now.
  void move_on() {
    const ProfileAction before = std::exchange(action, action_of_step());
    if (before == ProfileAction::record_and_save) end_window();
    const bool begins_window = is_kept(action) && before != ProfileAction::record;
    if (begins_window) {
      recording.reset();  // What the warm-up recorded goes.
      first_step = step;
      steps = 0;
    }
    if (action != ProfileAction::none && !recording) recording = std::make_unique<Recording>(options);
    step_began = trace_moment();
  }

  void end_step() {
    const TraceMoment now = span_end(step_began, trace_moment());
    if (recording) record_span(operators::kStep, step_began, now, step);
    ++steps;
    ++step;
  }

  void end_window() {
    std::unique_ptr<Recording> ended = std::move(recording);
    const std::int64_t number = window ? window->number + 1 : 1;
    window = ProfileWindow{number, first_step, steps, ended->trace.stop()};
    ended.reset();
    if (options.on_trace_ready) options.on_trace_ready(*window);
  }

  ProfileOptions options;
  ProfileAction action = ProfileAction::none;
  bool is_over = false;
  std::int64_t step = 0, first_step = 0, steps = 0;
  TraceMoment step_began{};
  std::optional<ProfileWindow> window;
  std::unique_ptr<Recording> recording;
};

Profile::Profile(ProfileOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  if (impl_->options.schedule) check(*impl_->options.schedule);
  impl_->move_on();
}

Profile::~Profile() = default;

void Profile::step() {
  if (impl_->is_over) fail(ErrorCode::invalid_argument, "profile: step: wanted one that runs, found that it is over");
  impl_->is_over = true;  // Until all of it is done.
  impl_->end_step();
  impl_->move_on();
  impl_->is_over = false;
}

void Profile::stop() {
  if (std::exchange(impl_->is_over, true)) return;
  if (is_kept(impl_->action)) return impl_->end_window();
  impl_->recording.reset();
}

std::int64_t Profile::step_number() const {
  return impl_->step;
}

const ProfileWindow* Profile::last_window() const {
  return impl_->window ? &*impl_->window : nullptr;
}

}  // namespace headrace
