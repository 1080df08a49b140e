// The part of a LoaderState that says what must be the same where it is restored.
#pragma once

#include <headrace/loader.h>

#include <cstdint>
#include <string>

namespace headrace::detail {

// LoaderState::options of a loader with these options: one line a key.
std::string state_options(DataOptions options, bool training);

// Throws Error{invalid_argument} that names the first thing in which `state` is of another loader than `ours`, whose
// epochs have `samples`.
void check_state(const LoaderState& state, const LoaderState& ours, std::int64_t samples, bool has_buckets);

}  // namespace headrace::detail
