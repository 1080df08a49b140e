// The instruction sets that both the processor and the system support.
#pragma once

#include <string>
#include <vector>

namespace headrace {

// Those that matter here, in this order: "sse4.2", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16",
// "avx512_fp16", "amx_int8", "amx_bf16". Empty where this build cannot ask (not x86-64).
std::vector<std::string> instruction_sets();

}  // namespace headrace
