// The dicts that functions of headrace._core are given.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "core/base/fail.h"
#include "python/core/values.h"

namespace headrace::python {

// Under the GIL.
class Given {
 public:
  // Errors begin with `caller`.
  Given(nanobind::dict values, const char* caller) : values_(std::move(values)), caller_(caller) {}

  nanobind::object operator[](const char* key) const { return values_[key]; }  // KeyError where there is none.

  // As a Value. Error{invalid_argument}, "tune: only: wanted texts, found 3", where it is of another kind.
  template <class Value>
  Value as(const char* key, const char* wanted) const {
    const nanobind::object given = values_[key];
    Value value{};
    if (nanobind::try_cast(given, value)) return value;
    fail(ErrorCode::invalid_argument, "{}: {}: wanted {}, found {}", caller_, key, wanted, repr_of(given));
  }

 private:
  nanobind::dict values_;
  const char* caller_;
};

}  // namespace headrace::python
