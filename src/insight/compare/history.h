// The comparisons of a project, one after the other, in a SQLite file.
//
// One comparison is one transaction: a killed process leaves it whole or not there. Another process that writes is
// waited for, up to 5 s. A History is for one thread at a time, and in one process a file is opened by one of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "insight/compare/compare_verdict.h"
#include "insight/compare/drift.h"

namespace headrace {

// What was compared. Figures of different commands or machines have histories of their own.
struct HistoryKey {
  std::string config;   // "profile examples/fashion_mnist.toml".
  std::string machine;  // "AMD EPYC 7B13, 2 usable of 2, ...".
};

class History {
 public:
  // Opens the file, or makes it. Error{corrupt_data}: it is somebody else's, damaged, or of another version; Error{io}
  // with SQLite's words: it cannot be read or written.
  explicit History(const std::filesystem::path& path);
  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Adds a comparison of the build `old_label` with `new_label`; metrics without a finite interval are left out.
  // `written` is a time for people. Error{io}.
  void add(const HistoryKey& key, const std::string& old_label, const std::string& new_label,
           const std::string& written, const CompareVerdict& verdict);

  // The builds that were compared by this metric, in order of time, as find_drifts() takes them. Error{io}.
  std::vector<HistoryPoint> points(const HistoryKey& key, const std::string& metric) const;

  std::int64_t comparisons() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
