// A source whose samples are read by child processes, for code that cannot be run by threads of this process.
#pragma once

#include <headrace/source.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headrace {

struct ProcessSourceOptions {
  std::string name;                  // Of the source, for messages.
  std::vector<std::string> command;  // A program that speaks data/source/worker_protocol.h, and its arguments.
  std::int64_t workers = 1;
  // Of one sample. Costs no memory until a sample is as large.
  std::int64_t sample_bytes_max = std::int64_t{256} << 20;
  // In which a worker must have started, or answered.
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
  bool sizes_vary = false;  // Images of pixels have sizes of their own, whatever size the worker tells.
  std::function<void()> while_starting = {};  // Called while the constructor waits; what it throws ends that.
};

struct WorkerStatistics {
  std::int64_t workers = 0;         // Wanted now.
  std::int64_t started = 0;         // Since the source was opened; the first ones included.
  std::int64_t died = 0;            // That had not been told to end.
  std::vector<std::string> deaths;  // How, and on which sample; the first 100.
  std::vector<pid_t> processes;     // That live now.
};

// Thread-safe: as many read() run at a time as there are workers, others wait. A sample's bytes come through memory
// shared with its worker and are copied once. Workers start when the source is opened and end with it; they do not
// outlive this process, however it ends.
//
// A worker that dies, hangs beyond the timeout or talks nonsense is replaced, and its sample read once more by a new
// worker; a second death is the sample's Error{corrupt_data}, which names both. What the worker's own code reports is
// the sample's Error{corrupt_data}, too. A worker that cannot be started is Error{internal}, which no policy covers.
class ProcessSource : public Source, public KnownSamples, public Interruptible {
 public:
  // Waits until the first worker is ready. `payload` goes to every worker. Error{invalid_argument} when the worker
  // tells facts that no source has or refuses what it was given, {internal} when it dies or says nothing.
  ProcessSource(ProcessSourceOptions options, std::span<const std::byte> payload);
  ~ProcessSource() override;

  std::int64_t size() const override;
  const SourceInfo& info() const override;
  void read(std::int64_t index, Sample& sample) const override;
  std::string name(std::int64_t index) const override;
  Capabilities capabilities() const override;
  std::int64_t label(std::int64_t index) const override;
  // Every read() that runs ends with Error{cancelled}; its worker is killed.
  void interrupt() const override;

  // At least 1. Additional ones start when they are needed; superfluous ones end after their sample. From any thread.
  void set_workers(std::int64_t workers);
  // Ends those that wait for a sample. Until start_workers() one starts whenever it is needed.
  void end_workers();
  // As many as are wanted live after it, without waiting until they are ready.
  void start_workers();
  WorkerStatistics statistics() const;
  // How a sample's fields are put together, as the first worker told; empty: it did not.
  const std::string& form() const;

 private:
  class Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace headrace
