#include "engine/assembly/trial_process.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/fail.h"
#include "core/base/utf8.h"
#include "core/exec/stop.h"
#include "engine/assembly/trial_protocol.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kStopIsSeen = 100ms;   // After a signal that asks this process to stop.
constexpr auto kTimeToExit = 2000ms;  // From the closing of the socket at either end to the child's end.

SharedMemory shared(const std::string& text) {
  SharedMemory memory{"headrace-recipe", std::max<std::int64_t>(std::ssize(text), 1)};
  std::memcpy(memory.bytes().data(), text.data(), text.size());
  return memory;
}

// Of a child's failure. That somebody stopped the child is a fault of this trial alone, and no stop of the tuning.
ErrorCode code_of(std::int64_t number) {
  const bool is_known = number >= 0 && number <= static_cast<std::int64_t>(ErrorCode::internal);
  const auto code = is_known ? static_cast<ErrorCode>(number) : ErrorCode::internal;
  return code == ErrorCode::cancelled ? ErrorCode::internal : code;
}

}  // namespace

TrialProcess::TrialProcess(TrialCommand command)
    : command_(std::move(command)), recipe_(shared(command_.recipe)), slot_("headrace-trial", trial::kSlotBytes) {
  auto [ours, theirs] = ControlChannel::pair();
  channel_ = std::make_unique<ControlChannel>(std::move(ours));
  child_ = std::make_unique<ChildProcess>(
      ChildCommand{.arguments = command_.arguments,
                   .descriptors = {theirs.descriptor(), recipe_.descriptor(), slot_.descriptor()},
                   .environment = {}});
  { const ControlChannel closed{std::move(theirs)}; }  // So that its end shows as the socket's.
  const std::int64_t format = answer(trial::ready).numbers[0];
  if (format != trial::kFormat) lose(fmt::format("speaks format {}, wanted {}", format, trial::kFormat));
}

TrialProcess::~TrialProcess() {
  child_->resume();
  channel_->shut_down();
  static_cast<void>(child_->wait(kTimeToExit));
}

std::vector<double> TrialProcess::run(std::int64_t steps, bool from_snapshot) {
  std::vector<double> seconds;
  while (std::ssize(seconds) < steps) {
    const std::int64_t piece = std::min(steps - std::ssize(seconds), trial::kStepsMax);
    const bool begins = from_snapshot && seconds.empty();
    const ControlMessage found = ask({trial::run, {piece, begins ? 1 : 0}}, trial::ran);
    if (found.numbers[0] != piece) lose(fmt::format("was asked for {} steps and made {}", piece, found.numbers[0]));
    const auto bytes = slot_.front(piece * static_cast<std::int64_t>(sizeof(double)));
    seconds.resize(seconds.size() + static_cast<std::size_t>(piece));
    std::memcpy(&*(seconds.end() - piece), bytes.data(), bytes.size());
  }
  return seconds;
}

std::uint64_t TrialProcess::state_hash() {
  return static_cast<std::uint64_t>(ask({trial::hash, {}}, trial::hashed).numbers[0]);
}

ControlMessage TrialProcess::ask(const ControlMessage& question, std::uint32_t wanted) {
  // Where nobody hears it the answer is that the socket is closed.
  static_cast<void>(channel_->send(question));
  return answer(wanted);
}

ControlMessage TrialProcess::answer(std::uint32_t wanted) {
  const auto deadline = Clock::now() + command_.timeout;
  while (!channel_->can_receive(std::min<std::chrono::milliseconds>(kStopIsSeen, command_.timeout))) {
    if (stop_signal() != 0) fail(ErrorCode::cancelled, "tune: stopped");
    if (Clock::now() < deadline) continue;
    lose(fmt::format("gave no answer within {:g} s and was killed",
                     std::chrono::duration<double>(command_.timeout).count()));
  }
  ControlMessage message;
  switch (channel_->receive(message, 0ms)) {
    case ControlChannel::Arrival::message:
      break;
    case ControlChannel::Arrival::closed:
    case ControlChannel::Arrival::late: {
      const std::optional<ExitStatus> ended = child_->wait(kTimeToExit);
      lose(ended ? ended->text() : "closed its socket and was killed");
    }
    case ControlChannel::Arrival::malformed:
      lose("sent what is no message and was killed");
  }
  if (message.kind == trial::failed) refuse(message);
  if (message.kind != wanted) lose(fmt::format("sent a message of kind {} where {} was wanted", message.kind, wanted));
  return message;
}

void TrialProcess::refuse(const ControlMessage& failure) const {
  const auto bytes = slot_.front(std::clamp<std::int64_t>(failure.numbers[1], 0, trial::kTextMax));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.resize(utf8_text_length(text));
  fail(code_of(failure.numbers[0]), "tune: the process with {}: {}", command_.name, text);
}

void TrialProcess::lose(const std::string& how) const {
  child_->kill();
  fail(ErrorCode::internal, "tune: the process with {} {}", command_.name, how);
}

}  // namespace headrace
