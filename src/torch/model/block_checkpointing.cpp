#include "torch/model/detail/block_checkpointing.h"

#include <ATen/autocast_mode.h>

#include <algorithm>
#include <utility>

#include "core/base/fail.h"

namespace headrace {
namespace {

constexpr double kMiB = 1 << 20;

bool is_autocast(const at::Tensor& images) {
  return at::autocast::is_autocast_enabled(images.device().type());
}

Applied applied_offload(at::Device device) {
  Applied offload{"model.checkpoint_offload", "host", "host", ""};
  if (device.is_cuda()) return offload;
  offload.applied = "none";
  offload.reason = fmt::format("the network is on {}, which is not a CUDA device", device.str());
  return offload;
}

}  // namespace

BlockCheckpointing::BlockCheckpointing(std::vector<std::string> names)
    : names_(std::move(names)), recomputed_(names_.size(), false) {}

void BlockCheckpointing::set(const CheckpointingRequest& request) {
  std::vector<bool> requested(names_.size(), false);
  const bool has_choice = request.kind == ActivationCheckpointing::blocks && !names_.empty();
  if (has_choice) requested = requested_blocks(names_, request);
  recomputed_ = std::move(requested);
  request_ = request;
  found_.reset();
}

bool BlockCheckpointing::offloads(const at::Tensor& input) const {
  return request_.offload == CheckpointOffload::host && input.is_cuda();
}

bool BlockCheckpointing::is_due(const at::Tensor& images) const {
  return !names_.empty() && (!found_ || images.numel() > found_->numbers || is_autocast(images) != found_->autocast);
}

at::Tensor BlockCheckpointing::measured(const at::Tensor& images, const std::vector<at::Tensor>& constant,
                                        const std::function<at::Tensor()>& pass) {
  std::vector<at::Tensor> older = constant;
  older.push_back(images);
  if (request_.budget_mib > 0) std::fill(recomputed_.begin(), recomputed_.end(), true);
  measurement_ = std::make_unique<Measurement>(images.device(), older);
  at::Tensor logits;
  try {
    logits = pass();
  } catch (...) {
    measurement_.reset();
    throw;
  }
  const std::unique_ptr<Measurement> measurement = std::move(measurement_);
  found_ = Found{learned(*measurement, !offloads(images)), images.numel(), is_autocast(images), /*fits=*/true};
  if (request_.budget_mib > 0) {
    BlockChoice choice = choose_blocks(found_->bytes, static_cast<std::int64_t>(request_.budget_mib * kMiB));
    recomputed_ = std::move(choice.recomputed);
    found_->fits = choice.fits;
  }
  return logits;
}

void BlockCheckpointing::begin_block(const at::Tensor& input) {
  if (measurement_ == nullptr) return;
  if (measurement_->boundaries.empty()) measurement_->boundaries.emplace_back(input);
  measurement_->before = measurement_->storages.bytes();
}

void BlockCheckpointing::end_block(const at::Tensor& output) {
  if (measurement_ == nullptr) return;
  measurement_->saved.push_back(measurement_->storages.bytes() - measurement_->before);
  measurement_->boundaries.emplace_back(output);
}

// The forward is over, its graph is whole: what is held beyond the blocks' own bytes lies outside of them.
SavedBytes BlockCheckpointing::learned(const Measurement& measurement, bool inputs_on_device) const {
  HEADRACE_CHECK(measurement.saved.size() == names_.size(), "{} blocks were measured of {}", measurement.saved.size(),
                 names_.size());
  SavedBytes bytes{.blocks = {}, .inputs_on_device = inputs_on_device};
  for (std::size_t i = 0; i < names_.size(); ++i) {
    bytes.blocks.push_back({measurement.saved[i], measurement.boundaries[i + 1].bytes()});
  }
  if (!measurement.boundaries.back().is_live()) bytes.blocks.back().output = 0;
  bytes.outside = measurement.storages.bytes() - bytes_at_end(bytes, recomputed_);
  // Where the first block's input is held on the device, it is part of what lies outside.
  if (!measurement.boundaries.front().is_live()) bytes.input = measurement.boundaries.front().bytes();
  return bytes;
}

Applied BlockCheckpointing::applied_budget() const {
  Applied budget{"model.checkpoint_budget_mib", fmt::format("{}", request_.budget_mib), "", ""};
  budget.applied = budget.requested;
  if (!found_) {
    budget.applied = "none";
    budget.reason = "blocks are chosen after the first training step, and there was none";
  } else if (!found_->fits) {
    const double least = static_cast<double>(peak_bytes(found_->bytes, recomputed_)) / kMiB;
    budget.applied = fmt::format("{:.1f}", least);
    budget.reason = fmt::format(
        "wanted at most {} MiB kept at once for the backward, found {:.1f} MiB with {} of {} blocks computed again, "
        "the least that a choice of blocks reaches",
        request_.budget_mib, least, std::count(recomputed_.begin(), recomputed_.end(), true), names_.size());
  }
  return budget;
}

CheckpointingReport BlockCheckpointing::report(at::Device device) const {
  CheckpointingReport report;
  if (request_.kind == ActivationCheckpointing::none) return report;
  const std::string kind{choice_name(request_.kind)};
  report.applied.push_back({"model.activation_checkpointing", kind, kind, ""});
  if (request_.kind != ActivationCheckpointing::blocks) return report;
  report.blocks = names_;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (recomputed_[i]) report.recomputed.push_back(names_[i]);
  }
  if (request_.budget_mib > 0) report.applied.push_back(applied_budget());
  if (request_.offload == CheckpointOffload::host) report.applied.push_back(applied_offload(device));
  if (found_) {
    report.saved_bytes_before = bytes_at_end(found_->bytes, std::vector<bool>(names_.size(), false));
    report.saved_bytes_after = bytes_at_end(found_->bytes, recomputed_);
    report.peak_bytes = peak_bytes(found_->bytes, recomputed_);
  }
  return report;
}

}  // namespace headrace
