// Whatever gives batches in Python: a headrace.Loader, a DataLoader, a list of batches, a function that makes a
// generator. Everything here runs under the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

namespace headrace::python {

class AnyLoader {
 public:
  // TypeError when `loader` is neither iterable nor callable.
  explicit AnyLoader(pybind11::object loader);

  // A new epoch: iter(loader), or iter(loader()) for a function. An iterator or a generator gives itself, so that its
  // second epoch is empty: `single_pass` tells.
  pybind11::iterator pass() const;
  bool single_pass() const;
  // len(loader), where it has one.
  std::optional<std::int64_t> batches() const;
  // Whether that is an estimate, as of an IterableDataset, or of a DataLoader over one.
  bool has_estimated_length() const;
  const pybind11::object& object() const { return loader_; }

 private:
  pybind11::object loader_;
};

// The next batch, or nullopt at the end. What the loader raises goes on.
std::optional<pybind11::object> next_batch(pybind11::iterator& pass);

// Whether it is a headrace.Loader. Of it only its methods are known here: it is an object of headrace._core, another
// extension (src/python/core/bind_loader.cpp).
bool is_native_loader(pybind11::handle loader);

// Whether it is a headrace.Batch.
bool is_of_loader(pybind11::handle batch);

// Samples along a batch's first axis: of a headrace.Batch all, whether they count or not; else the length of the first
// tensor that has an axis, looking into it as find_tensor() does; nullopt: there is none.
std::optional<std::int64_t> batch_rows(pybind11::handle batch);

// Samples that count in a batch: of a headrace.Batch those that are valid; else its rows, or 1 where it has none.
std::int64_t batch_samples(pybind11::handle batch);

}  // namespace headrace::python
