// Options that contradict one another: what several keys say together, which no range can.
#pragma once

#include <headrace/options/data.h>
#include <headrace/options/train.h>
#include <headrace/options/transform.h>
#include <headrace/options/transforms.h>

#include <string>

namespace headrace {

// What of the order's options contradicts the rest, as a message that begins with a key; empty when nothing does.
// Recipes and the Loader both ask. `prefix` stands before the keys: "data.".
std::string order_contradiction(const DataOptions& options, const std::string& prefix);

// What an operation lacks or contradicts in itself, likewise. `prefix`: "data.transforms[0].".
std::string operation_contradiction(TransformSpec operation, const std::string& prefix);

// What the lists of operations lack or contradict, in themselves or in the transform beside them, likewise.
std::string transforms_contradiction(const DataOptions& options, const std::string& prefix);

// What of the options contradicts the rest, as a message that begins with a key; empty when nothing does.
// Recipes and the Loader both ask. `prefix` stands before the keys: "data.transform.".
std::string transform_contradiction(const TransformOptions& options, const std::string& prefix);

// What of the clipping of gradients contradicts itself, likewise: an update clips once. Recipes and the Trainer both
// ask. `prefix`: "train.".
std::string clip_contradiction(const TrainOptions& options, const std::string& prefix);

}  // namespace headrace
