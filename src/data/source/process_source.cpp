#include "data/source/process_source.h"

#include <headrace/trace.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "core/base/condition_variable.h"
#include "core/base/fail.h"
#include "core/base/utf8.h"
#include "core/exec/child_process.h"
#include "core/exec/control_channel.h"
#include "core/exec/shared_memory.h"
#include "data/source/field_bytes.h"
#include "data/source/source_facts.h"
#include "data/source/worker_facts.h"
#include "data/source/worker_protocol.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;

constexpr SpanName kWaitForWorker{"wait_for_worker", "wait"};  // All are reading for others.
constexpr SpanName kReadByWorker{"read_by_worker", "work"};    // Value: the sample's index.

constexpr std::int64_t kWorkersMax = 256;
constexpr std::int64_t kSlotKept = std::int64_t{64} << 20;  // Of a slot, after a sample that was larger.
constexpr auto kTimeToEnd = 2s;                             // Of workers that were told to, before they are killed.
constexpr auto kTimeToExit = 500ms;                         // From a worker's closing its socket to its end.
constexpr std::size_t kDeathsListed = 100;

std::int64_t checked_workers(std::int64_t workers) {
  if (workers < 1 || workers > kWorkersMax) {
    fail(ErrorCode::invalid_argument, "data: {} worker processes; wanted 1 to {}", workers, kWorkersMax);
  }
  return workers;
}

SharedMemory shared(std::span<const std::byte> payload) {
  SharedMemory memory{"headrace-payload", std::max<std::int64_t>(std::ssize(payload), 1)};
  std::copy(payload.begin(), payload.end(), memory.bytes().begin());
  return memory;
}

struct Worker {
  Worker(std::int64_t given_number, std::int64_t given_place, SharedMemory own_slot, ControlChannel our_end,
         const ChildCommand& command)
      : number(given_number),
        place(given_place),
        slot(std::move(own_slot)),
        channel(std::move(our_end)),
        child(command) {}

  std::string name() const { return fmt::format("worker {} (process {})", number, child.pid()); }

  const std::int64_t number;  // Of all that were started.
  const std::int64_t place;   // Among those that live.
  const SharedMemory slot;
  const ControlChannel channel;
  ChildProcess child;
  bool ready = false;
};

std::unique_ptr<Worker> start_worker(const ProcessSourceOptions& options, const SharedMemory& payload,
                                     std::int64_t number, std::int64_t place) {
  try {
    auto [ours, theirs] = ControlChannel::pair();
    SharedMemory slot{"headrace-slot", options.sample_bytes_max};
    const ChildCommand command{.arguments = options.command,
                               .descriptors = {theirs.descriptor(), slot.descriptor(), payload.descriptor()},
                               .environment = {fmt::format("{}={}", worker::kPlaceVariable, place)}};
    return std::make_unique<Worker>(number, place, std::move(slot), std::move(ours), command);
  } catch (const Error& error) {  // Its code could be one that data.on_corrupt takes for the sample's.
    fail(ErrorCode::internal, "data: {}: cannot start worker {}: {}", options.name, number, error.what());
  }
}

std::string text_in(const Worker& worker, std::int64_t size) {
  const auto bytes = worker.slot.front(std::clamp<std::int64_t>(
      size, 0, std::min(worker::kTextMax, static_cast<std::int64_t>(worker.slot.bytes().size()))));
  std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  text.resize(utf8_text_length(text));
  return text;
}

// What is wrong with an answer to read(index), or nothing.
std::string nonsense_in(const ControlMessage& answer, std::int64_t index, const Worker& worker) {
  const std::int64_t asked = answer.numbers[0], bytes = answer.numbers[1];
  if (asked != index) return fmt::format("an answer about sample {}", asked);
  if (answer.kind == worker::failed) return "";
  if (answer.kind != worker::sample) return fmt::format("a message of kind {}", answer.kind);
  if (bytes < 0 || bytes > std::ssize(worker.slot.bytes())) {
    return fmt::format("a sample of {} bytes; its slot has {}", bytes, worker.slot.bytes().size());
  }
  return "";
}

}  // namespace

class ProcessSource::Pool {
 public:
  Pool(ProcessSourceOptions options, std::span<const std::byte> payload);
  ~Pool();

  void read(std::int64_t index, Sample& sample);
  void set_workers(std::int64_t workers);
  void end_workers();
  void start_workers();
  void interrupt();
  WorkerStatistics statistics() const;
  const SourceFacts& facts() const { return facts_; }
  const SourceInfo& info() const { return info_; }
  std::int64_t label(std::int64_t index) const { return labels_->at(index); }

 private:
  class Lease;

  Worker* take();
  Worker* take_new();
  std::unique_ptr<Worker> start_promised();
  std::int64_t take_place();
  void leave_place(const Worker& worker);
  std::unique_ptr<Worker> out_of_busy(const Worker* worker);
  void give_back(const Worker* worker, bool sound);
  Worker* replace(const Worker* lost);
  void wait_for_first(const Worker& worker) const;
  SourceFacts greet(Worker& worker) const;
  void check_fields(const Worker& worker, const Schema& told) const;
  void make_ready(Worker& worker) const;
  std::string receive(Worker& worker, ControlMessage& answer) const;
  std::string ask(Worker& worker, std::int64_t index, ControlMessage& answer) const;
  std::string take_fields(const Worker& worker, const ControlMessage& answer, Sample& sample) const;
  void accept(const Worker& worker, const ControlMessage& answer, const Sample& sample);
  void note_death(const std::string& death, std::int64_t index);
  std::int64_t interrupts() const;
  void check_not_interrupted(std::int64_t interrupts_before, std::int64_t index) const;
  static void end(const std::vector<std::unique_ptr<Worker>>& workers);

  const pid_t owner_;  // A process forked from it leaves the workers alone.
  const ProcessSourceOptions options_;
  const SharedMemory payload_;
  SourceFacts facts_;                  // Constant once built.
  SourceInfo info_;                    // The same,
  std::optional<KnownLabels> labels_;  // likewise,
  std::optional<FieldBytes> format_;   // likewise.
  mutable std::mutex mutex_;           // Guards everything below.
  std::condition_variable free_;       // A worker is idle, or another one may be started.
  std::int64_t wanted_;
  std::int64_t starting_ = 0;
  std::set<std::int64_t> places_;  // Taken by workers that live or start.
  std::int64_t interrupts_ = 0;
  std::vector<std::unique_ptr<Worker>> idle_;
  std::vector<std::unique_ptr<Worker>> busy_;
  WorkerStatistics totals_;
};

// A worker for one sample. It goes back when it is sound, and is killed otherwise.
class ProcessSource::Pool::Lease {
 public:
  explicit Lease(Pool& pool) : pool_(pool), worker_(pool.take()) {}
  ~Lease() {
    if (worker_ != nullptr) pool_.give_back(worker_, sound_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Worker& operator*() const { return *worker_; }
  void set_sound() { sound_ = true; }
  // By one that is new, in its place; the worker is killed.
  void replace() { worker_ = pool_.replace(std::exchange(worker_, nullptr)); }

 private:
  Pool& pool_;
  Worker* worker_;
  bool sound_ = false;
};

ProcessSource::Pool::Pool(ProcessSourceOptions options, std::span<const std::byte> payload)
    : owner_(::getpid()),
      options_(std::move(options)),
      payload_(shared(payload)),
      wanted_(checked_workers(options_.workers)) {
  for (std::int64_t i = 0; i < wanted_; ++i) {
    idle_.push_back(start_worker(options_, payload_, totals_.started, take_place()));
    ++totals_.started;
  }
  wait_for_first(*idle_.front());
  facts_ = greet(*idle_.front());
  idle_.front()->ready = true;
  info_ = info_of(facts_);
  labels_.emplace(facts_);
  format_.emplace(facts_.schema);
  std::reverse(idle_.begin(), idle_.end());  // The one that is ready is taken first.
}

// Its first message, or its end, is there to be read after this, or the time is over.
void ProcessSource::Pool::wait_for_first(const Worker& worker) const {
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  while (options_.while_starting && !worker.channel.can_receive(100ms) && std::chrono::steady_clock::now() < deadline) {
    options_.while_starting();
  }
}

ProcessSource::Pool::~Pool() {
  if (owner_ != ::getpid()) return;
  HEADRACE_CHECK(busy_.empty(), "data: {} is closed while it is read", facts_.name);
  end(idle_);
}

// Lets them end by themselves for a while; what is left then is killed by their destructors.
void ProcessSource::Pool::end(const std::vector<std::unique_ptr<Worker>>& workers) {
  for (const auto& worker : workers) worker->channel.shut_down();
  const auto deadline = std::chrono::steady_clock::now() + kTimeToEnd;
  for (const auto& worker : workers) {
    const auto left = deadline - std::chrono::steady_clock::now();
    static_cast<void>(
        worker->child.wait(std::max(std::chrono::ceil<std::chrono::milliseconds>(left), std::chrono::milliseconds(0))));
  }
}

// ---- Who reads ----

Worker* ProcessSource::Pool::take() {
  {
    std::unique_lock lock(mutex_);
    const auto available = [this] {
      return !idle_.empty() || std::ssize(idle_) + std::ssize(busy_) + starting_ < wanted_;
    };
    if (!available()) {
      Span span{kWaitForWorker};
      free_.wait(lock, available);
    }
    if (!idle_.empty()) {
      busy_.push_back(std::move(idle_.back()));
      idle_.pop_back();
      return busy_.back().get();
    }
    ++starting_;
  }
  return take_new();
}

// `starting_` counts it already.
Worker* ProcessSource::Pool::take_new() {
  auto worker = start_promised();
  std::lock_guard lock(mutex_);
  --starting_;
  busy_.push_back(std::move(worker));
  return busy_.back().get();
}

// The lowest that is free, so that a new worker has that of the one it replaces. `mutex_` is held, but by the
// constructor.
std::int64_t ProcessSource::Pool::take_place() {
  std::int64_t place = 0;
  while (places_.contains(place)) ++place;
  places_.insert(place);
  return place;
}

// `mutex_` is held.
void ProcessSource::Pool::leave_place(const Worker& worker) {
  places_.erase(worker.place);
}

// `starting_` counts it already, and the caller takes it out. After an exception it is out.
std::unique_ptr<Worker> ProcessSource::Pool::start_promised() {
  std::int64_t number = 0, place = 0;
  {
    std::lock_guard lock(mutex_);
    number = totals_.started++;
    place = take_place();
  }
  try {
    return start_worker(options_, payload_, number, place);
  } catch (...) {
    {
      std::lock_guard lock(mutex_);
      --starting_;
      --totals_.started;
      places_.erase(place);
    }
    free_.notify_one();
    throw;
  }
}

// `mutex_` is held.
std::unique_ptr<Worker> ProcessSource::Pool::out_of_busy(const Worker* worker) {
  const auto place =
      std::find_if(busy_.begin(), busy_.end(), [worker](const auto& held) { return held.get() == worker; });
  auto mine = std::move(*place);
  busy_.erase(place);
  return mine;
}

// Promised at once: a reader that waits would start one in its place, and there would be one more than wanted.
Worker* ProcessSource::Pool::replace(const Worker* lost) {
  {
    std::unique_ptr<Worker> mine;  // Killed after the lock is given back.
    std::lock_guard lock(mutex_);
    mine = out_of_busy(lost);
    leave_place(*mine);
    ++starting_;
  }
  return take_new();
}

void ProcessSource::Pool::give_back(const Worker* worker, bool sound) {
  std::vector<std::unique_ptr<Worker>> superfluous;
  std::unique_ptr<Worker> mine;
  {
    std::lock_guard lock(mutex_);
    mine = out_of_busy(worker);
    if (sound && std::ssize(idle_) + std::ssize(busy_) + starting_ < wanted_) {
      idle_.push_back(std::move(mine));
    } else {
      leave_place(*mine);
      if (sound) superfluous.push_back(std::move(mine));
    }
  }
  free_.notify_one();
  end(superfluous);
}

void ProcessSource::Pool::set_workers(std::int64_t workers) {
  std::vector<std::unique_ptr<Worker>> superfluous;
  {
    std::lock_guard lock(mutex_);
    wanted_ = checked_workers(workers);
    while (!idle_.empty() && std::ssize(idle_) + std::ssize(busy_) + starting_ > wanted_) {
      leave_place(*idle_.back());
      superfluous.push_back(std::move(idle_.back()));
      idle_.pop_back();
    }
  }
  free_.notify_all();
  end(superfluous);
}

void ProcessSource::Pool::end_workers() {
  std::vector<std::unique_ptr<Worker>> ended;
  {
    std::lock_guard lock(mutex_);
    ended.swap(idle_);
    for (const auto& worker : ended) leave_place(*worker);
  }
  free_.notify_all();
  end(ended);
}

void ProcessSource::Pool::start_workers() {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (std::ssize(idle_) + std::ssize(busy_) + starting_ >= wanted_) return;
      ++starting_;
    }
    auto worker = start_promised();
    {
      std::lock_guard lock(mutex_);
      --starting_;
      idle_.push_back(std::move(worker));
    }
    free_.notify_one();
  }
}

void ProcessSource::Pool::interrupt() {
  std::lock_guard lock(mutex_);
  ++interrupts_;
  for (const auto& worker : busy_) worker->child.kill();
}

std::int64_t ProcessSource::Pool::interrupts() const {
  std::lock_guard lock(mutex_);
  return interrupts_;
}

void ProcessSource::Pool::check_not_interrupted(std::int64_t interrupts_before, std::int64_t index) const {
  if (interrupts() == interrupts_before) return;
  fail(ErrorCode::cancelled, "data: reading {} was interrupted", sample_name_of(facts_, index));
}

// ---- What is said ----

// Empty when a message came; otherwise how the worker is lost.
std::string ProcessSource::Pool::receive(Worker& worker, ControlMessage& answer) const {
  switch (worker.channel.receive(answer, options_.timeout)) {
    case ControlChannel::Arrival::message:
      return "";
    case ControlChannel::Arrival::late:
      return fmt::format("{} gave no answer within worker_timeout_s = {} s and was killed", worker.name(),
                         std::chrono::duration<double>(options_.timeout).count());
    case ControlChannel::Arrival::malformed:
      return fmt::format("{} sent what is no message and was killed", worker.name());
    case ControlChannel::Arrival::closed:
      break;
  }
  const auto ended = worker.child.wait(kTimeToExit);
  if (!ended) return fmt::format("{} closed its control socket and was killed", worker.name());
  return fmt::format("{} {}", worker.name(), ended->text());
}

SourceFacts ProcessSource::Pool::greet(Worker& worker) const {
  ControlMessage message;
  if (const std::string lost = receive(worker, message); !lost.empty()) {
    fail(ErrorCode::internal, "data: {}: {} before it was ready to read", options_.name, lost);
  }
  if (message.kind == worker::failed) {
    fail(ErrorCode::invalid_argument, "data: {}: {} cannot read from it: {}", options_.name, worker.name(),
         text_in(worker, message.numbers[1]));
  }
  SourceFacts facts = facts_told(message, worker.slot.bytes(), {options_.name, worker.name()}, options_.sizes_vary);
  worker.slot.release_after(0);
  return facts;
}

// Each worker learns them from the same samples. Where these differ each time they are read, so may what it learns.
void ProcessSource::Pool::check_fields(const Worker& worker, const Schema& told) const {
  const Schema& first = facts_.schema;
  for (std::size_t i = 0; i < std::max(told.size(), first.size()); ++i) {
    if (i < told.size() && i < first.size() && told[i] == first[i]) continue;
    const auto text = [i](const Schema& schema) { return i < schema.size() ? Schema{{schema[i]}}.text() : "no more"; };
    fail(ErrorCode::invalid_argument,
         "data: {}: {} found a field {} where another one found {}: the samples differ each time they are read; "
         "fields= says what they are",
         options_.name, worker.name(), text(told), text(first));
  }
}

void ProcessSource::Pool::make_ready(Worker& worker) const {
  if (worker.ready) return;
  SourceFacts told = greet(worker);
  told.form = facts_.form;  // The first one's counts: no byte of a batch depends on it.
  check_fields(worker, told.schema);
  if (told != facts_) {
    fail(ErrorCode::internal,
         "data: {}: {} tells {} samples, {} classes, {} labels and {}; another one told {}, {}, {} and {}",
         options_.name, worker.name(), told.size, told.classes, told.labels.size(), told.schema.text(), facts_.size,
         facts_.classes, facts_.labels.size(), facts_.schema.text());
  }
  worker.ready = true;
}

// Empty when the answer makes sense; otherwise how the worker is lost.
std::string ProcessSource::Pool::ask(Worker& worker, std::int64_t index, ControlMessage& answer) const {
  Span span{kReadByWorker, index};
  // Where the worker is gone already receive() tells how.
  static_cast<void>(worker.channel.send({.kind = worker::read, .numbers = {index}}));
  if (std::string lost = receive(worker, answer); !lost.empty()) return lost;
  const std::string nonsense = nonsense_in(answer, index, worker);
  if (nonsense.empty()) return "";
  return fmt::format("{} sent {} and was killed", worker.name(), nonsense);
}

void ProcessSource::Pool::read(std::int64_t index, Sample& sample) {
  const std::int64_t interrupts_before = interrupts();
  Lease worker{*this};
  std::string first_death;
  while (true) {
    check_not_interrupted(interrupts_before, index);  // Between waiting for a worker and asking it.
    make_ready(*worker);
    ControlMessage answer;
    std::string death = ask(*worker, index, answer);
    if (death.empty()) death = take_fields(*worker, answer, sample);
    if (death.empty()) {
      worker.set_sound();
      return accept(*worker, answer, sample);
    }
    check_not_interrupted(interrupts_before, index);
    note_death(death, index);
    if (!first_death.empty()) {
      fail(ErrorCode::corrupt_data, "data: {}: two worker processes were lost on it: {}; {}",
           sample_name_of(facts_, index), first_death, death);
    }
    worker.replace();  // Not by one that waits: it may have died of what killed the first.
    first_death = std::move(death);
  }
}

// Empty when the fields are where the answer says; otherwise how the worker is lost. What they hold is judged by
// whoever reads the sample.
std::string ProcessSource::Pool::take_fields(const Worker& worker, const ControlMessage& answer, Sample& sample) const {
  if (answer.kind == worker::failed) return "";
  // Copied as a whole before it is looked at: the worker may write there meanwhile.
  const auto bytes = worker.slot.front(answer.numbers[1]);
  std::vector<std::uint8_t>& buffer = sample.buffer(0);
  if (buffer.size() < bytes.size()) buffer.resize(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
  if (std::ssize(bytes) > kSlotKept) worker.slot.release_after(kSlotKept);
  const auto fault = format_->locate(std::as_bytes(std::span{buffer}.first(bytes.size())), sample.payloads());
  return fault ? fmt::format("{} sent {} and was killed", worker.name(), fault->text) : "";
}

void ProcessSource::Pool::accept(const Worker& worker, const ControlMessage& answer, const Sample& sample) {
  const std::int64_t index = answer.numbers[0];
  if (answer.kind == worker::failed) {
    fail(ErrorCode::corrupt_data, "data: {}: {}", sample_name_of(facts_, index), text_in(worker, answer.numbers[1]));
  }
  labels_->note(facts_, index, sample);
}

void ProcessSource::Pool::note_death(const std::string& death, std::int64_t index) {
  std::lock_guard lock(mutex_);
  ++totals_.died;
  if (totals_.deaths.size() < kDeathsListed) {
    totals_.deaths.push_back(fmt::format("{} while it read {}", death, sample_name_of(facts_, index)));
  }
}

WorkerStatistics ProcessSource::Pool::statistics() const {
  std::lock_guard lock(mutex_);
  WorkerStatistics now = totals_;
  now.workers = wanted_;
  for (const auto& worker : idle_) now.processes.push_back(worker->child.pid());
  for (const auto& worker : busy_) now.processes.push_back(worker->child.pid());
  return now;
}

// ---- Public face ----

ProcessSource::ProcessSource(ProcessSourceOptions options, std::span<const std::byte> payload)
    : pool_(std::make_unique<Pool>(std::move(options), payload)) {}
ProcessSource::~ProcessSource() = default;

std::int64_t ProcessSource::size() const {
  return pool_->facts().size;
}
const SourceInfo& ProcessSource::info() const {
  return pool_->info();
}
void ProcessSource::read(std::int64_t index, Sample& sample) const {
  pool_->read(index, sample);
}

std::int64_t ProcessSource::label(std::int64_t index) const {
  return pool_->label(index);
}
std::string ProcessSource::name(std::int64_t index) const {
  return sample_name_of(pool_->facts(), index);
}
Capabilities ProcessSource::capabilities() const {
  return {.known = this, .interruptible = this};
}

void ProcessSource::set_workers(std::int64_t workers) {
  pool_->set_workers(workers);
}
void ProcessSource::end_workers() {
  pool_->end_workers();
}
void ProcessSource::start_workers() {
  pool_->start_workers();
}
void ProcessSource::interrupt() const {
  pool_->interrupt();
}
const std::string& ProcessSource::form() const {
  return pool_->facts().form;
}
WorkerStatistics ProcessSource::statistics() const {
  return pool_->statistics();
}

}  // namespace headrace
