// The part of a LoaderState that says what must be the same where it is restored.
#pragma once

#include <headrace/loader.h>
#include <headrace/operation.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::detail {

// What a state tells of an operation that the loader was given.
struct ToldOperation {
  std::string name;
  std::vector<OperationParameter> parameters;
};

// LoaderState::options of a loader with these options over such samples: one line a key. "fields" is among them where
// samples are other than images and labels, "order" where the caller gives it, and where the loader was given
// operations "operations", their names, and "operations[0].Resize.size" and so on, what each tells of its parameters.
std::string state_options(DataOptions options, bool training, const Schema& schema, bool order_is_given = false,
                          const std::vector<ToldOperation>& operations = {});

// Throws Error{invalid_argument} that names the first thing in which `state` is of another loader than `ours`, whose
// epochs have `samples`.
void check_state(const LoaderState& state, const LoaderState& ours, std::int64_t samples, bool has_buckets);

}  // namespace headrace::detail
