// Batches that are computed in parts because memory ran out, and the limit by which it does.
#pragma once

#include <ATen/core/Tensor.h>
#include <headrace/error.h>
#include <headrace/model_state.h>
#include <headrace/optimizer.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "torch/tensor/safetensors.h"

namespace headrace {

// Samples of the next part of a batch of which `left` are to do, at most `micro_batch`; 0: any number. Parts of a batch
// differ by one at most.
std::int64_t part_size(std::int64_t left, std::int64_t micro_batch);

// The sentence of an exception that says that memory ran out, of the CPU or a device; nullopt: it says something else.
std::optional<std::string> out_of_memory_reason(const std::exception_ptr& exception);

// After a backward that threw. LibTorch keeps one queue of nodes that are ready for each thread, and a backward that
// ends halfway leaves in it those that were still to run, each with the graph below it and its saved activations. A
// later backward ends with its own last node and never takes them out: their memory stays until the thread ends
// (pytorch#82218). A chain of nodes leaves none; two branches of which one fails leave the other. Gives the thread a
// new queue, which frees them. Does nothing within a backward, whose own queue it is.
void renew_ready_queue();

// Whether it has running statistics, as BatchNorm's, which depend on the samples that are computed together.
bool has_running_statistics(const ModelState& model);

// The gradients of these parameters, put aside so that a backward that ends halfway spoils none of them. At the end of
// its life they are back, and what was made meanwhile is gone, unless put_back() returned it. A parameter may be listed
// twice. Costs no copy; until put_back() a parameter may have two gradients.
class GradientsAside {
 public:
  explicit GradientsAside(std::vector<at::Tensor> parameters);
  ~GradientsAside();
  GradientsAside(const GradientsAside&) = delete;
  GradientsAside& operator=(const GradientsAside&) = delete;

  // Puts them back and returns what was made since, in the order of the parameters; undefined: nothing. Once.
  std::vector<at::Tensor> put_back();

 private:
  std::vector<at::Tensor> parameters_, aside_;
};

// Adds to the gradients that the parameters have, as a backward does, with the same bits.
void add_to_gradients(const std::vector<at::Tensor>& parameters, std::vector<at::Tensor> more);

// Counts what a training holds that is older than the first count: parameters, buffers, gradients, averages, optimizer
// state. See count_tensors().
void count_training(const ModelState& model, const NamedTensors& averages, Optimizer& optimizer);

// A limit of tensor memory that ends with it. Of several the newest that lives is in force; after the last one that
// which was there before the first. One that somebody else has set meanwhile stays. Process-wide: see
// torch/tensor/tensor_memory.h. Any thread.
class HeldMemoryLimit {
 public:
  HeldMemoryLimit() = default;
  ~HeldMemoryLimit();
  HeldMemoryLimit(const HeldMemoryLimit&) = delete;
  HeldMemoryLimit& operator=(const HeldMemoryLimit&) = delete;

  // Bytes, those of the model's tensors among them; 0: no longer one of its own, so that another one's may be in force.
  // Error{invalid_argument}: below 0, or less than the model's parameters and buffers take. Not applied to a model that
  // is not on the CPU.
  const Applied& set(std::int64_t bytes, const ModelState& model);
  const Applied& applied() const { return applied_; }

 private:
  Applied applied_{"train.memory_limit_mib", "0", "0", ""};
};

}  // namespace headrace
