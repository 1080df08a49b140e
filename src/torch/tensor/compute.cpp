#include "torch/tensor/compute.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <dlfcn.h>

#include <mutex>
#include <string>

#include "core/base/fail.h"

namespace headrace {
namespace {

// Empty, or why the process keeps another number of inter-op threads.
const std::string& single_inter_op_thread() {
  static const std::string reason = [] {
    if (at::get_num_interop_threads() == 1) return std::string{};
    try {
      at::set_num_interop_threads(1);
    } catch (const c10::Error&) {  // Fixed since its first use, which was before us: Python's, when we are its guest.
      return fmt::format("inter-op threads stay at {}: they were in use before", at::get_num_interop_threads());
    }
    return std::string{};
  }();
  return reason;
}

}  // namespace

Applied apply_compute_threads(std::int64_t threads) {
  if (threads < 1 || threads > 1024) {
    fail(ErrorCode::invalid_argument, "tensor: compute threads: wanted 1 to 1024, found {}", threads);
  }
  const std::string& inter_op_reason = single_inter_op_thread();
  at::set_num_threads(static_cast<int>(threads));
  Applied applied{"compute.intra_op_threads", std::to_string(threads), std::to_string(compute_threads()),
                  inter_op_reason};
  if (applied.applied != applied.requested) {
    applied.reason = fmt::format("LibTorch runs with {} threads here ({})", applied.applied,
                                 at::get_parallel_info().substr(0, at::get_parallel_info().find('\n')));
  }
  return applied;
}

std::int64_t compute_threads() {
  return at::get_num_threads();
}

// By name: the OpenMP that LibTorch brings along is not linked here, and has no header.
void end_idle_compute_threads() {
  static const auto pause_all = reinterpret_cast<int (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_pause_resource_all"));
  constexpr int kSoft = 1;  // omp_pause_soft of OpenMP 5.0.
  if (pause_all != nullptr) pause_all(kSoft);
}

}  // namespace headrace
