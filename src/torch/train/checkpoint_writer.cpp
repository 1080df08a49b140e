#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <headrace/checkpoint_writer.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <future>
#include <optional>
#include <utility>

#include "core/memory/accounts.h"
#include "torch/train/checkpoint.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

// Row-major, whatever the tensors' layout, as files have them. The thread that writes has nothing to compute then: an
// operator run there would start as many compute threads as training has, beside those.
NamedTensors room_for(const NamedTensors& tensors) {
  NamedTensors room;
  for (const auto& [name, tensor] : tensors) {
    room.emplace_back(name, at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type())));
  }
  return room;
}

}  // namespace

struct CheckpointWriter::Impl {
  const bool beside;
  std::atomic<std::int64_t> written{0};
  NamedTensors copies;                      // What is written, or was last.
  std::atomic<std::int64_t> copy_bytes{0};  // The account reads it from any thread.
  std::optional<Account> account;
  std::exception_ptr failure;  // Of the last write, until it is thrown; null: none.
  std::future<void> writing;   // Its destructor waits for the thread: last, so that all that it reads lives on.

  bool is_writing() const {
    return writing.valid() && writing.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  }

  void wait() {
    if (!writing.valid()) return;
    try {
      writing.get();
    } catch (...) {
      failure = std::current_exception();
    }
  }

  void throw_failure() {
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }

  // Starts the write, or makes it where it is not `beside`; no other is under way.
  void write(UnwrittenCheckpoint checkpoint) {
    if (!beside) {
      write_checkpoint(std::move(checkpoint));
      ++written;
      return;
    }
    make_room(checkpoint.tensors);
    {
      c10::AutoGradMode no_graph(false);
      for (std::size_t i = 0; i < copies.size(); ++i) copies[i].second.copy_(checkpoint.tensors[i].second);
    }
    checkpoint.tensors = copies;
    writing = std::async(std::launch::async, [this, copied = std::move(checkpoint)]() mutable {
      write_checkpoint(std::move(copied));
      ++written;
    });
  }

  void make_room(const NamedTensors& tensors) {
    if (are_alike(copies, tensors)) return;
    copies.clear();  // Or both copies would be held at once.
    copy_bytes = 0;
    // Where TensorAllocations counts, the trainer would call it activations; only `profile` counts, and writes none.
    copies = room_for(tensors);
    copy_bytes = bytes_of(copies);
  }
};

CheckpointWriter::CheckpointWriter(bool beside) : impl_(new Impl{beside}) {
  if (beside) impl_->account.emplace("checkpoint copy", [my = impl_.get()] { return my->copy_bytes.load(); });
}

CheckpointWriter::~CheckpointWriter() = default;

void CheckpointWriter::save(const fs::path& folder, Trainer& trainer, const RunState& run, std::int64_t keep) {
  impl_->wait();
  impl_->write(next_checkpoint(folder, trainer, run, keep));
  impl_->throw_failure();
}

bool CheckpointWriter::save_best(const fs::path& folder, Trainer& trainer, const RunState& run, double score) {
  impl_->wait();
  std::optional<UnwrittenCheckpoint> best = best_checkpoint(folder, trainer, run, score);
  if (best) impl_->write(std::move(*best));
  impl_->throw_failure();
  return best.has_value();
}

void CheckpointWriter::check() {
  if (!impl_->is_writing()) finish();
}

void CheckpointWriter::finish() {
  impl_->wait();
  impl_->throw_failure();
}

bool CheckpointWriter::is_writing() const {
  return impl_->is_writing();
}

std::int64_t CheckpointWriter::written() const {
  return impl_->written;
}

}  // namespace headrace
