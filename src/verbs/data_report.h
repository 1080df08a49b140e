// What a run says about its data: what opening found odd, and the samples that could not be read.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "assembly/training.h"
#include "cli/console.h"

namespace headrace {

// One warning each; nothing when all is as it should be.
void tell_remarks(Console& console, const Training& training);
// How many samples data.on_corrupt replaced or zeroed so far, and the first of them by name and reason.
void tell_corrupt_samples(Console& console, const Training& training);
// {"on_corrupt": "replace", "times": 4, "samples": [{"name", "reason"}]}, training and test data together.
nlohmann::ordered_json corrupt_samples_json(const Training& training);

}  // namespace headrace
