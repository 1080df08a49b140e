// What a numerics check of a change compares, and as what, where other changes are kept already.
#pragma once

#include <headrace/tune.h>

#include <span>
#include <vector>

namespace headrace {

struct NumericPair {
  NumericClass numeric_class;
  Settings reference, candidate;

  bool operator==(const NumericPair&) const = default;
};

// The reference is the job as written, so that errors cannot add up unseen from one kept change to the next. Kept
// changes of a looser class than the candidate's hide what it does, or blow it up: a difference in rounding becomes one
// of bfloat16. So they count on both sides of bit_equal, on neither of rounding, and with them in force the whole must
// still point where the job as written does. What batches hold and what is computed of them are judged apart. `kept` in
// the order in which they were kept: a later one overrides the keys of one before.
std::vector<NumericPair> numeric_pairs(const Candidate& tried, std::span<const Candidate* const> kept);

}  // namespace headrace
