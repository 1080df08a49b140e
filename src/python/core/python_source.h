// A source written in Python, read by the loader's own threads.
#pragma once

#include <headrace/error.h>
#include <headrace/options/data.h>
#include <headrace/source.h>
#include <nanobind/nanobind.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/source/source_facts.h"

namespace headrace::python {

// Error{invalid_argument}: no object that gives samples by index. `others`: what else is taken there, for the message.
void check_source(const nanobind::object& source, std::string_view others);

// What a sample's __getitem__ raised. It goes through the loader as a corrupt sample, and out of it as what it was.
class SampleException : public Error {
 public:
  // Under the GIL, as restore() and not the rest.
  SampleException(ErrorCode code, nanobind::python_error raised, const std::string& sample);
  // Makes it Python's current exception again, with a note that names the sample.
  void restore() const;

 private:
  nanobind::python_error raised_;
  std::string sample_;
};

// Any thread may read; the GIL is taken for it, so that one sample is made at a time unless the source's code lets go
// of it. When Python ends, reads that run are waited for and later ones refused: a thread that waits for the GIL then
// would be ended by Python in the middle of it.
class PythonSource : public Source, KnownSamples {
 public:
  // Under the GIL. `fields`: SourceReader's, or None. `sizes_vary`: images of pixels may have sizes of their own. A
  // field beside the image of more bytes than `limits` allow is refused before they are copied. Reads a sample, or a
  // few, to learn what they are like; what that raises goes on.
  PythonSource(const nanobind::object& source, const nanobind::object& fields, bool sizes_vary,
               SampleLimits limits = {});
  ~PythonSource() override;

  std::int64_t size() const override { return facts_.size; }
  const SourceInfo& info() const override { return info_; }
  void read(std::int64_t index, Sample& sample) const override;
  std::string name(std::int64_t index) const override { return sample_name_of(facts_, index); }
  Capabilities capabilities() const override { return {.known = this}; }
  std::int64_t label(std::int64_t index) const override { return labels_->at(index); }
  // How a sample's fields are put together.
  const std::string& form() const { return facts_.form; }

 private:
  nanobind::object read_;  // headrace.worker.SourceReader.read
  SampleLimits limits_;
  SourceFacts facts_;
  SourceInfo info_;
  mutable std::optional<KnownLabels> labels_;
};

}  // namespace headrace::python
