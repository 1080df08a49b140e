// A profile of a scope, written into a folder, under the name of the Python package performance_optimization.
#pragma once

#include <filesystem>
#include <memory>

namespace headrace::facade {

// Records what headrace does in all threads from its construction on:
//
//   {
//     const hr::facade::Profile profile("logdir");
//     model.fit(loader, 10);
//   }
//
// At the end of the scope, also by exception, it writes into the folder, in the place of an earlier profile's:
//
//   trace.json                a Chrome JSON trace, which Perfetto opens.
//   pipeline_statistics.json  time_split, the seconds of the training steps by part, or null with the reason; spans, by
//                             name how many and how long; memory over time; dropped_events, which full buffers lost.
//
// Made and ended by one thread.
class Profile {
 public:
  // The folder is made if need be. Error{invalid_argument}: another recording runs, of which a process has one at a
  // time. std::filesystem::filesystem_error: the folder cannot be made.
  explicit Profile(std::filesystem::path logdir);
  // As stop(), but what cannot be written is told on stderr.
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  // Ends the recording and writes. A second call does nothing. Error{io}: a file cannot be written.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace::facade
