// Kernels of one's own: operators that a shared library registers with LibTorch, for programs, TorchScript modules and
// Python alike. May change until version 1.0.
//
// In the library, built against headrace's CMake package but linked with LibTorch alone (examples/cpp/kernel):
//
//   #include <headrace/kernel.h>
//   #include <torch/library.h>
//   #include <torch/version.h>
//
//   HEADRACE_KERNEL_LIBRARY
//   TORCH_LIBRARY(example, library) { library.def("normalise(Tensor images, Tensor mean, Tensor std) -> Tensor"); }
//   TORCH_LIBRARY_IMPL(example, CPU, library) { library.impl("normalise", &normalise); }
//
// Of a CUDA kernel there is a TORCH_LIBRARY_IMPL with CUDA, in the same library or in another one.
#pragma once

#include <filesystem>
#include <string>

// Once in each such library: which LibTorch it was built for. It is read from the file before the file is opened.
#define HEADRACE_KERNEL_LIBRARY                                                           \
  extern "C" {                                                                            \
  __attribute__((visibility("default"))) extern const char headrace_kernel_library[];     \
  const char headrace_kernel_library[] = "headrace kernel library, torch " TORCH_VERSION; \
  }

namespace headrace {

// Opens `library` and makes sure that it has registered the operator `name`, "example::normalise", which
// c10::Dispatcher and TorchScript find by this name from then on. A library may have several; it is opened once. It
// stays open until the process ends, and opening it runs its code: only files that are trusted as much as this program.
// Not from several threads at once.
//
// Every Error names operator or file. {invalid_argument}: a name of another form, or one whose namespace has operators
// of another library, which LibTorch would end the process for. {not_found}: no such file. {io}: it cannot be read.
// {corrupt_data}: it is empty, or no regular file, as a folder. {unsupported}: it lacks HEADRACE_KERNEL_LIBRARY, was
// built for another minor version of torch, cannot be opened (the system says why), or does not register the name.
void register_kernel(const std::string& name, const std::filesystem::path& library);

}  // namespace headrace
