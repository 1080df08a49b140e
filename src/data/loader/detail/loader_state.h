// The part of a LoaderState that says what must be the same where it is restored.
#pragma once

#include <headrace/loader.h>

#include <cstdint>
#include <string>
#include <vector>

namespace headrace::detail {

// LoaderState::options of a loader with these options over such samples: one line a key. "fields" is among them where
// samples are other than images and labels, "order" where the caller gives it, and "operations", their names, where the
// loader was given some.
std::string state_options(DataOptions options, bool training, const Schema& schema, bool order_is_given = false,
                          const std::vector<std::string>& operations = {});

// Throws Error{invalid_argument} that names the first thing in which `state` is of another loader than `ours`, whose
// epochs have `samples`.
void check_state(const LoaderState& state, const LoaderState& ours, std::int64_t samples, bool has_buckets);

}  // namespace headrace::detail
