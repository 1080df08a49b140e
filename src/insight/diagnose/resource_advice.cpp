#include "insight/diagnose/detail/resource_advice.h"

namespace headrace {

const char* to_string(Resource resource) noexcept {
  switch (resource) {
    case Resource::storage:
      return "storage";
    case Resource::decode:
      return "decode";
    case Resource::augment:
      return "augment";
    case Resource::collate:
      return "collate";
    case Resource::transfer:
      return "transfer";
    case Resource::compute:
      return "compute";
    case Resource::optimizer:
      return "optimizer";
    case Resource::python:
      return "python";
    case Resource::synchronisation:
      return "synchronisation";
    case Resource::memory:
      return "memory";
    case Resource::cores:
      return "cores";
    case Resource::imbalance:
      return "imbalance";
  }
  return "unknown";
}

namespace detail {
namespace {

constexpr const char* kBySleeping =
    "To confirm it: confirm(loader) of an hr.watch takes some batches with a sleep in the place of compute; "
    "hr.diagnose_loop, or headrace profile of a recipe, runs steps on one cached batch as well.";
constexpr const char* kByOneBatch =
    "To confirm it: hr.diagnose_loop, or headrace profile of a recipe, runs steps on one cached batch.";
constexpr const char* kByPairs =
    "To confirm it: make the change, and let headrace compare run the job with and without it in pairs.";

// Of what a loop waits for, and not of what it computes.
bool is_of_loading(Resource resource) {
  switch (resource) {
    case Resource::storage:
    case Resource::decode:
    case Resource::augment:
    case Resource::collate:
    case Resource::cores:
    case Resource::imbalance:
      return true;
    default:
      return false;
  }
}

ResourceAdvice advice_on_resource(Resource resource) {
  switch (resource) {
    case Resource::storage:
      return {
          "Keep what was read (data.cache), put many small files into one (headrace pack), or read more at a time "
          "(data.num_workers).",
          {"data.cache", "data.num_workers"}};
    case Resource::decode:
      return {
          "Decode less of an image (data.scale_decode, data.index), keep it decoded (data.cache), or decode in more "
          "threads (data.num_workers).",
          {"data.scale_decode", "data.index", "data.cache", "data.num_workers"}};
    case Resource::augment:
      return {
          "Leave out the dearest transform (data.transforms), transform whole batches, or transform in more threads "
          "(data.num_workers).",
          {"data.transforms", "data.num_workers"}};
    case Resource::collate:
      return {
          "Let samples be written where the batch lies: a headrace.Loader does (data.loader). Make your own "
          "collate_fn copy each sample once.",
          {"data.loader"}};
    case Resource::transfer:
      return {
          "Move batches ahead while the step before computes, from locked memory, and in the type in which they are "
          "computed on (data.transform.dtype, data.transform.layout).",
          {"data.transform.dtype", "data.transform.layout"}};
    case Resource::compute:
      return {
          "Let headrace tune try what computes the same faster: train.precision, model.memory_format, model.fusion, "
          "compute.intra_op_threads.",
          {"train.precision", "model.memory_format", "model.fusion", "compute.intra_op_threads"}};
    case Resource::optimizer:
      return {"Update all parameters in one pass (optimizer.fused = true).", {"optimizer.fused", "optimizer.foreach"}};
    case Resource::python:
      return {
          "Take work out of the loop's body, look at metrics every n-th step (train.loss_interval), and let "
          "headrace.Trainer or torch.compile run the step.",
          {"train.loss_interval"}};
    case Resource::synchronisation:
      return {
          "Read losses and metrics every n-th step (train.loss_interval), and let another thread do what waits: "
          "logging, checkpoints (train.async_checkpoints).",
          {"train.loss_interval", "train.async_checkpoints"}};
    case Resource::memory:
      return {
          "Let tensors lie in an arena that keeps its pages (compute.allocator = \"arena\"), reuse buffers instead of "
          "making them anew, and collect garbage between epochs.",
          {"compute.allocator"}};
    case Resource::cores:
      return {
          "Divide the cores between loading and compute (data.num_workers, compute.intra_op_threads), or give other "
          "programs fewer.",
          {"data.num_workers", "compute.intra_op_threads"}};
    case Resource::imbalance:
      return {
          "Prepare more batches ahead (data.prefetch_batches), put samples alike into one batch (data.buckets), and "
          "give each worker and rank as much.",
          {"data.prefetch_batches", "data.buckets"}};
  }
  return {};
}

}  // namespace

ResourceAdvice advice_on(Resource resource, bool loads_ahead) {
  ResourceAdvice advice = advice_on_resource(resource);
  if (loads_ahead) return advice;
  advice.sentence = "Let a worker load the next batches while the loop computes (data.num_workers). " + advice.sentence;
  std::erase(advice.keys, "data.num_workers");
  advice.keys.insert(advice.keys.begin(), "data.num_workers");
  return advice;
}

std::string how_to_confirm(const ResourceVerdict& verdict, const ResourceFigures& figures) {
  if (!verdict.first || verdict.confirmed) return {};
  if (verdict.healthy) return kByOneBatch;
  const bool is_of_ranks = *verdict.first == Resource::imbalance && figures.rank_busy_s.size() > 1;
  return is_of_loading(*verdict.first) && !is_of_ranks && !figures.experiments.any() ? kBySleeping : kByPairs;
}

}  // namespace detail
}  // namespace headrace
