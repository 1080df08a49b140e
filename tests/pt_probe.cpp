// Writes the tensors that we find in a file of torch.save as safetensors, or says why it is refused:
// pt_weights_test.py compares them with what torch.load gives.
//   pt_probe IN OUT
#include <headrace/error.h>

#include <cstdio>

#include "torch/tensor/pt_weights.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: pt_probe IN OUT\n");
    return 2;
  }
  try {
    headrace::write_safetensors(argv[2], headrace::read_pt(argv[1]).tensors, {});
  } catch (const headrace::Error& error) {
    std::printf("%s: %s\n", headrace::to_string(error.code()), error.what());
    return 1;
  }
}
