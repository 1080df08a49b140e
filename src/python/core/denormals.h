// compute.flush_denormal without LibTorch: numbers below 1.2e-38 count as 0 where torch computes.
#pragma once

#include <string>

namespace headrace::python {

// Of the calling thread.
bool flushes_denormals();

// Gives the floating-point mode of the calling thread, of which flushing is a part, to the `threads` that compute for
// it in torch, itself among them. Costs what a small operator does. Returns why they cannot be reached, or "".
std::string share_float_mode(int threads);

}  // namespace headrace::python
