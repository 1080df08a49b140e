// The value in the middle of measured ones.
#pragma once

#include <vector>

namespace headrace {

// Of at least one value, in any order: the middle one, of an even number the upper of the two. It is a value that
// occurred; insight/tune/statistics.h's median() is the mean of both. Linear in their number.
double middle_of(std::vector<double> values);

}  // namespace headrace
