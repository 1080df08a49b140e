#include "core/hardware/instruction_sets.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace headrace {

#if defined(__x86_64__)
namespace {

struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Leaf read_leaf(unsigned leaf, unsigned part) {
  Leaf out;
  // Zeros where the processor does not know the leaf.
  if (__get_cpuid_count(leaf, part, &out.a, &out.b, &out.c, &out.d) == 0) out = {};
  return out;
}

// The register states that the system saves when it switches threads: without them the instructions fault.
std::uint64_t saved_states(const Leaf& features) {
  constexpr unsigned kOsXsave = 1U << 27;
  if ((features.c & kOsXsave) == 0) return 0;
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (std::uint64_t{high} << 32) | low;
}

bool bit(unsigned word, int index) {
  return (word >> index & 1) != 0;
}

}  // namespace

std::vector<std::string> instruction_sets() {
  const Leaf features = read_leaf(1, 0), more = read_leaf(7, 0);
  const Leaf newer = more.a >= 1 ? read_leaf(7, 1) : Leaf{};
  const std::uint64_t saved = saved_states(features);
  constexpr std::uint64_t kAvxState = 0x6, kAvx512State = 0xe6, kAmxState = 0x60000;
  const bool avx = (saved & kAvxState) == kAvxState && bit(features.c, 28);
  const bool avx512 = avx && (saved & kAvx512State) == kAvx512State && bit(more.b, 16);
  const bool amx = (saved & kAmxState) == kAmxState && bit(more.d, 24);

  std::vector<std::string> sets;
  const auto add_if = [&sets](bool is_there, const char* name) {
    if (is_there) sets.emplace_back(name);
  };
  add_if(bit(features.c, 20), "sse4.2");
  add_if(avx && bit(more.b, 5), "avx2");
  add_if(avx && bit(features.c, 12), "fma");
  add_if(avx512, "avx512f");
  add_if(avx512 && bit(more.c, 11), "avx512_vnni");
  add_if(avx512 && bit(newer.a, 5), "avx512_bf16");
  add_if(avx512 && bit(more.d, 23), "avx512_fp16");
  add_if(amx && bit(more.d, 25), "amx_int8");
  add_if(amx && bit(more.d, 22), "amx_bf16");
  return sets;
}
#else
std::vector<std::string> instruction_sets() {
  return {};
}
#endif

}  // namespace headrace
