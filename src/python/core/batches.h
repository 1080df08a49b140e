// Batches of any loader, as they come from its iterator. Everything here runs under the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

namespace headrace::python {

// The next batch of an iterator, or nullopt at the end. What the loader raises goes on.
std::optional<nanobind::object> next_batch(nanobind::handle pass);

// Whether it is a headrace.Batch.
bool is_of_loader(nanobind::handle batch);

// Samples in a batch: the length of the first tensor with a dimension that is found in it, looking into mappings
// (dicts, UserDicts such as Hugging Face's BatchEncoding), lists and tuples in their order; 1 where there is none.
std::int64_t batch_samples(nanobind::handle batch);

}  // namespace headrace::python
