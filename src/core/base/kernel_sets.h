// The instruction sets that kernels are compiled for, so that a test or a bench can run each of them.
//
// A kernel file is compiled once per set by Highway, which picks the best that the machine has when a kernel is first
// asked for. The set "plain" has no vectors; its code is the specification of the others.
#pragma once

#include <string>
#include <vector>

namespace headrace {

// Those built in that this machine has, best first and "plain" last.
std::vector<std::string> kernel_sets();
// Every kernel asked for from now on is of that set; an empty name: of the best again. For tests and benches.
void use_kernel_set(const std::string& name) noexcept;

}  // namespace headrace
