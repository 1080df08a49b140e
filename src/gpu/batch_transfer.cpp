#include "gpu/batch_transfer.h"

#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "gpu/host_pages.h"
#include "gpu/stream_order.h"

namespace headrace {
namespace {

using c10::cuda::CUDAEvent;
using c10::cuda::CUDAStream;

constexpr std::size_t kHeldMost = 4;  // Batches. The loader waits for those that it lent.

// The same values without gaps between them, so that they are one copy; the strides may be any.
at::Tensor without_gaps(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.resolve_conj().resolve_neg();
  return plain.is_non_overlapping_and_dense() ? plain : plain.contiguous();
}

bool lies_as(const at::Tensor& buffer, const at::Tensor& tensor) {
  return buffer.defined() && buffer.scalar_type() == tensor.scalar_type() && buffer.sizes() == tensor.sizes() &&
         buffer.strides() == tensor.strides();
}

class CudaBatchTransfer final : public BatchTransfer {
 public:
  // Streams of high priority come from a list of their own, so that it is not the stream that is captured on.
  explicit CudaBatchTransfer(c10::DeviceIndex index)
      : index_(index), side_(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, index)) {}

  // What is held may be freed then, and used for something else.
  ~CudaBatchTransfer() override {
    if (held_.empty()) return;
    C10_CUDA_IGNORE_ERROR(cudaStreamSynchronize(side_.stream()));
    const ReadsAreDone done;
    held_.clear();
  }

  void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) override {
    TORCH_CHECK(from.size() == to.size(), "device: ", from.size(), " tensors for ", to.size(), " places");
    const c10::cuda::CUDAGuard device(index_);
    const c10::NoGradGuard no_graph;
    const CUDAStream current = c10::cuda::getCurrentCUDAStream(index_);
    let_go();
    Buffers& buffers = buffers_[turn_];
    const std::vector<bool> is_buffered = copy_ahead(from, buffers, current);
    for (std::size_t i = 0; i < from.size(); ++i) {
      copy_on_device(is_buffered[i] ? buffers.tensors[i] : from[i], to[i], current);
    }
    if (std::find(is_buffered.begin(), is_buffered.end(), true) == is_buffered.end()) return;
    buffers.consumed.record(current);
    turn_ = 1 - turn_;
  }

 private:
  struct Buffers {
    std::vector<at::Tensor> tensors;  // By the place in the batch.
    CUDAEvent consumed;               // Reached when the current stream has read them.
  };
  struct Held {
    CUDAEvent copied;
    std::vector<at::Tensor> tensors;
  };

  // As memory where it lies alike: an operator takes the host several times as long.
  static void copy_on_device(const at::Tensor& from, const at::Tensor& to, const CUDAStream& current) {
    if (from.device() != to.device() || !lies_as(to, from) || !to.is_non_overlapping_and_dense() || from.is_neg() ||
        from.is_conj()) {
      to.copy_(from, /*non_blocking=*/true);
    } else if (to.numel() > 0) {
      C10_CUDA_CHECK(cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes(),
                                     cudaMemcpyDeviceToDevice, current.stream()));
    }
  }

  // Of batches that are copied: their memory may be used again at once.
  void let_go() {
    const ReadsAreDone done;
    while (!held_.empty() && held_.front().copied.query()) held_.pop_front();
    while (held_.size() >= kHeldMost) {
      held_.front().copied.synchronize();
      held_.pop_front();
    }
  }

  // Queues the copies of what lies on the CPU to the buffers, and has the current stream wait for them.
  std::vector<bool> copy_ahead(const std::vector<at::Tensor>& from, Buffers& buffers, const CUDAStream& current) {
    std::vector<bool> is_buffered(from.size(), false);
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // From, to.
    bool is_new = false;
    buffers.tensors.resize(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) {
      if (!from[i].is_cpu() || from[i].layout() != at::kStrided) continue;
      is_buffered[i] = true;
      const at::Tensor host = without_gaps(from[i]);
      at::Tensor& buffer = buffers.tensors[i];
      if (!lies_as(buffer, host)) {
        buffer = at::empty_like(host, host.options().device(c10::Device(c10::kCUDA, index_)));
        is_new = true;
      }
      copies.emplace_back(host, buffer);
    }
    if (copies.empty()) return is_buffered;
    if (is_new) put_after(side_, current);  // What it still has queued may use memory that is the buffer's now.
    buffers.consumed.block(side_);
    Held held;
    for (const auto& [host, buffer] : copies) {
      // At once from memory that is locked; of other memory CUDA first makes a copy, on this thread.
      if (host.numel() > 0) {
        C10_CUDA_CHECK(cudaMemcpyAsync(buffer.mutable_data_ptr(), host.const_data_ptr(), host.nbytes(),
                                       cudaMemcpyHostToDevice, side_.stream()));
      }
      held.tensors.push_back(host);
    }
    held.copied.record(side_);
    held_.push_back(std::move(held));
    held_.back().copied.block(current);
    return is_buffered;
  }

  const c10::DeviceIndex index_;
  const CUDAStream side_;
  std::array<Buffers, 2> buffers_;
  std::size_t turn_ = 0;
  std::deque<Held> held_;  // The oldest first.
};

}  // namespace

std::unique_ptr<BatchTransfer> cuda_batch_transfer(c10::DeviceIndex index) {
  return std::make_unique<CudaBatchTransfer>(index);
}

}  // namespace headrace
