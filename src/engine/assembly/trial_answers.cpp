#include "engine/assembly/trial_answers.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "core/base/fail.h"
#include "core/base/fault_point.h"
#include "core/base/files.h"
#include "engine/assembly/trial_protocol.h"
#include "torch/tensor/translate.h"

namespace headrace {
namespace {

constexpr auto kForever = std::chrono::hours(24 * 7);  // A parent that ends takes this process along.

void write_slot(int slot, std::span<const std::byte> bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::pwrite(slot, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (written <= 0 && errno != EINTR) {
      fail(ErrorCode::io, "tune: cannot write {} bytes for the tuner: {}", bytes.size(), system_message(errno));
    }
    done += static_cast<std::size_t>(std::max<ssize_t>(written, 0));
  }
}

ControlMessage answer_to(const ControlMessage& question, Job& job, int slot) {
  if (question.kind == trial::hash) return {trial::hashed, {static_cast<std::int64_t>(job.state_hash())}};
  const std::int64_t steps = question.numbers[0];
  if (question.kind != trial::run || steps < 1 || steps > trial::kStepsMax) {
    fail(ErrorCode::internal, "tune: was asked for {} steps by a message of kind {}", steps, question.kind);
  }
  if (question.numbers[1] != 0) job.restore();
  const std::vector<double> seconds = job.run(steps);
  HEADRACE_CHECK(std::ssize(seconds) == steps, "{} times of {} steps", seconds.size(), steps);
  write_slot(slot, std::as_bytes(std::span{seconds}));
  return {trial::ran, {steps}};
}

}  // namespace

void answer_trial(const ControlChannel& parent, int slot, const std::function<std::unique_ptr<Job>()>& make_job) {
  try {
    const std::unique_ptr<Job> job = make_job();
    job->snapshot();
    if (!parent.send({trial::ready, {trial::kFormat}})) return;
    ControlMessage question;
    while (parent.receive(question, kForever) == ControlChannel::Arrival::message) {
      fault_point("trial.answer");
      if (!parent.send(answer_to(question, *job, slot))) return;
    }
  } catch (...) {
    const Error error = translate(std::current_exception());
    const std::string text = std::string(error.what()).substr(0, trial::kTextMax);
    write_slot(slot, std::as_bytes(std::span{text}));
    parent.send({trial::failed, {static_cast<std::int64_t>(error.code()), std::ssize(text)}});
  }
}

}  // namespace headrace
