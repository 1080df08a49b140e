// The files below a folder as a store: keys are paths.
#pragma once

#include <headrace/store.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "data/store/descriptor.h"
#include "data/store/file_calls.h"

namespace headrace {

namespace detail {
class PatientRead;
}

// A file is read by pread, not mapped: one that shrinks under a mapping kills the process. A get costs an open, an
// fstat and a pread; one more where the range ends with the file, which shows that there is no more. What may pass is
// tried anew (file_calls.h). A file that was replaced by one of the same size is taken as it is.
class FileStore final : public Store {
 public:
  // Of one get: no image is that large. The file may be larger.
  static constexpr std::int64_t kBytesMax = std::int64_t{1} << 30;

  // Keeps the folder open, so that its files stay in reach when it is renamed. A key that is an absolute path leads
  // where it says. `calls` must live as long as the store. Error{not_found, io}.
  explicit FileStore(std::filesystem::path root, const FileCalls& calls = FileCalls::system());

  std::span<const std::uint8_t> get(const char* key, const ByteRange& range,
                                    std::vector<std::uint8_t>& buffer) const override;
  std::int64_t size(const char* key) const override;
  // Does nothing: the system takes hints about open files only, and opening one is what a hint should spare.
  void expect(std::span<const char* const> /*keys*/) const override {}
  std::string text_of(const char* key) const override;

 private:
  // What the system refused: "open", "examine", "read"; errno.
  struct Refusal {
    const char* call;
    int reason;
  };
  struct OpenFile {
    Descriptor descriptor;
    std::int64_t size;
  };

  template <class Attempt>
  std::int64_t patiently(const char* key, const Attempt& attempt) const;
  std::variant<OpenFile, Refusal> open(const char* key) const;
  std::int64_t wanted_of(const char* key, const ByteRange& range, std::int64_t file_size) const;
  std::variant<std::int64_t, Refusal> try_get(const detail::PatientRead& reading, const char* key,
                                              const ByteRange& range, std::vector<std::uint8_t>& buffer) const;

  std::filesystem::path root_;
  Descriptor folder_;
  const FileCalls* calls_;
};

}  // namespace headrace
