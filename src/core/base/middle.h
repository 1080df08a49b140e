// Places in the order of measured values.
#pragma once

#include <vector>

namespace headrace {

// Of at least one value, in any order: the middle one, of an even number the upper of the two. It is a value that
// occurred; insight/tune/statistics.h's median() is the mean of both. Linear in their number.
double middle_of(std::vector<double> values);

// Of at least one value, ascending; `fraction` from 0 to 1. Interpolates between the two nearest (NumPy's default).
double percentile_of(const std::vector<double>& sorted, double fraction);

}  // namespace headrace
