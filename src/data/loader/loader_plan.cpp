// What a loader does with a sample, as Loader::explain() tells it: the passes that were taken, and what they would be
// if each stage were one of its own.
#include <headrace/loader.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "data/loader/detail/loader_impl.h"
#include "data/transform/sample_passes.h"

namespace headrace {
namespace detail {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);

// What a loader's plan depends on beside what it did.
struct PlanInput {
  const SampleReader& source;
  const transform::Plan& plan;
  bool has_image;
  Cache cache;   // In force now.
  bool indexed;  // There is an entropy index.
};

// The stages that these options ask for, whoever does them together.
struct Stages {
  explicit Stages(const PlanInput& input)
      : has_image(input.has_image),
        values(std::int64_t{input.plan.size().channels} * input.plan.size().height * input.plan.size().width),
        between(operations_between(input.plan)) {
    if (!has_image) return;
    halves = input.plan.type() == PixelType::bf16;
    planes = input.plan.layout() == PixelLayout::nchw && input.plan.size().channels > 1;
    const auto& last = input.plan.steps().back().fused;
    if (!last) return;
    const transform::FusedStage& stage = *last;
    const auto& [left, top, right, bottom] = stage.pad;
    padded = std::int64_t{stage.out.channels} * (stage.out.height + top + bottom) * (stage.out.width + left + right);
    resizes = stage.crop.kind != transform::CropKind::none;
    pads = stage.pad.is_any();
    flips = stage.flip_probability > 0;
    floats = stage.form.type != PixelType::u8;
    normalises = stage.normalises;
  }

  // Of a plan that is one pass none.
  static std::string operations_between(const transform::Plan& plan) {
    std::string names;
    for (const auto& step : plan.steps().first(plan.steps().size() - 1)) {
      for (std::size_t i = step.first; i < step.first + step.count; ++i) {
        names.append(names.empty() ? "" : ", ").append(plan.operations()[i]->name());
      }
    }
    return names;
  }

  bool has_image;
  std::int64_t values;      // Of a sample's image in the batch,
  std::int64_t padded = 0;  // and with its padding.
  std::string between;      // Operations before the last pass.
  bool resizes = false, pads = false, flips = false, floats = false, normalises = false, halves = false, planes = false;
};

std::string joined(std::initializer_list<std::pair<bool, const char*>> parts) {
  std::string text;
  for (const auto& [is_part, name] : parts) {
    if (is_part) text.append(text.empty() ? "" : ", ").append(name);
  }
  return text;
}

std::string name_of(SamplePass pass, const Stages& stages) {
  const bool writes = pass == SamplePass::write;
  switch (pass) {
    case SamplePass::read:
      return "read";
    case SamplePass::read_rows:
      return "read the crop's rows";
    case SamplePass::decode_region:
      return "decode the crop's region";
    case SamplePass::decode_indexed:
      return "decode the crop's region by its index";
    case SamplePass::decode_whole:
      return "decode the whole image";
    case SamplePass::keep:
      return "copy into the cache";
    case SamplePass::between:
      return stages.between;
    case SamplePass::resize:
      return "resize";
    case SamplePass::resize_write:
    case SamplePass::write:
      return joined({{!writes, "resize"},
                     {writes && stages.pads, "pad, crop"},
                     {stages.flips, "flip"},
                     {stages.floats, "to float"},
                     {stages.normalises, "normalise"},
                     {stages.planes, "planes"},
                     {stages.halves, "to bfloat16"},
                     {true, "into the batch"}});
  }
  return {};
}

void add_writing(Writing writing, std::vector<SamplePass>& passes) {
  switch (writing) {
    case Writing::as_stored:
      passes.push_back(SamplePass::write);
      break;
    case Writing::resized:
      passes.push_back(SamplePass::resize_write);
      break;
    case Writing::resized_then_placed:
      passes.insert(passes.end(), {SamplePass::resize, SamplePass::write});
  }
}

// Before anything was loaded. What a source gives is known by reading alone: images without a common size are taken
// for files, and an index that comes with a pack's samples is not foretold.
std::vector<SamplePass> expected(const PlanInput& input) {
  const bool in_rows = input.source.can().rows != nullptr, keeps_pixels = input.cache == Cache::decoded;
  std::vector<SamplePass> passes;
  if (!in_rows || keeps_pixels) passes.push_back(SamplePass::read);
  if (in_rows) passes.push_back(SamplePass::read_rows);
  if (!in_rows && input.has_image && stored_shape(input.source.info().schema).height == 0) {
    passes.push_back(SamplePass::decode_region);
    if (input.indexed) passes.push_back(SamplePass::decode_indexed);
    if (keeps_pixels) passes.push_back(SamplePass::decode_whole);
  }
  if (input.cache != Cache::none) passes.push_back(SamplePass::keep);
  if (!input.plan.is_one_pass()) passes.push_back(SamplePass::between);
  const transform::FusedStage last = input.plan.steps().back().fused.value_or(transform::FusedStage{});
  add_writing(writing_of(last, /*moved=*/false), passes);
  if (last.pad.is_any()) add_writing(writing_of(last, /*moved=*/true), passes);
  std::sort(passes.begin(), passes.end());
  passes.erase(std::unique(passes.begin(), passes.end()), passes.end());
  return passes;
}

// Stage by stage what the loaded samples would have moved, in the order in which separate transforms run.
std::vector<LoaderPlan::Pass> stage_by_stage(const Stages& stages, const SampleTotals& done, std::int64_t samples) {
  std::vector<LoaderPlan::Pass> passes;
  const auto add = [&](const char* name, std::int64_t count, std::int64_t in, std::int64_t out) {
    const double all = static_cast<double>(samples);
    passes.push_back({name, count, static_cast<double>(in) / all, static_cast<double>(out) / all});
  };
  const auto each = [&](const char* name, std::int64_t in, std::int64_t out) {
    add(name, samples, samples * in, samples * out);
  };
  const std::int64_t values = stages.values, floats = kFloatBytes * values;
  const SampleTotals::Pass &read = done.of(SamplePass::read), &rows = done.of(SamplePass::read_rows);
  add("read", read.samples + rows.samples, read.in + rows.in + done.unread, read.out + rows.out + done.unread);
  const SampleTotals::Pass decoded = done.decoded();
  if (decoded.samples > 0) add("decode the whole image", decoded.samples, decoded.in, done.whole);
  const SampleTotals::Pass& kept = done.of(SamplePass::keep);
  if (kept.samples > 0) add("copy into the cache", kept.samples, kept.in, kept.out);
  if (stages.resizes) {
    add("cut", samples, done.boxes, done.boxes);
    add("resize", samples, done.boxes, samples * values);
  }
  if (stages.pads) {
    each("pad", values, stages.padded);
    each("crop", values, values);
  }
  if (stages.flips) add("flip", done.flipped, done.flipped * values, done.flipped * values);
  if (stages.floats) each("to float", values, floats);
  if (stages.normalises) each("normalise", floats, floats);
  const std::int64_t now = stages.floats ? floats : values, last = stages.halves ? floats / 2 : now;
  if (stages.planes) each("planes", now, now);
  if (stages.halves) each("to bfloat16", floats, last);
  const SampleTotals::Pass& written = done.of(SamplePass::write);
  if (stages.has_image) {
    each("into the batch", last, last);
  } else {
    add("into the batch", written.samples, written.in, written.out);
  }
  return passes;
}

LoaderPlan::Moved sum_of(const std::vector<LoaderPlan::Pass>& passes) {
  LoaderPlan::Moved sum;
  for (const LoaderPlan::Pass& pass : passes) {
    sum.copied += *pass.bytes_out;
    sum.touched += *pass.bytes_in + *pass.bytes_out;
  }
  return sum;
}

// The passes that were taken, with what they moved; before the first sample those that the options lead to.
LoaderPlan plan_of(const PlanInput& input, const SampleTotals& done) {
  const Stages stages{input};
  LoaderPlan plan;
  if (input.has_image) plan.transforms = input.plan.explain();
  plan.samples = done.of(SamplePass::resize_write).samples + done.of(SamplePass::write).samples;
  if (plan.samples == 0) {
    for (const SamplePass pass : expected(input)) plan.passes.push_back({name_of(pass, stages), 0, {}, {}});
    return plan;
  }
  for (std::size_t i = 0; i < kSamplePasses; ++i) {
    const SampleTotals::Pass& taken = done.passes[i];
    if (taken.samples == 0) continue;
    const double all = static_cast<double>(plan.samples);
    plan.passes.push_back({name_of(static_cast<SamplePass>(i), stages), taken.samples,
                           static_cast<double>(taken.in) / all, static_cast<double>(taken.out) / all});
  }
  plan.moved = sum_of(plan.passes);
  if (!input.plan.is_one_pass()) return plan;  // What each operation would move by itself is not known.
  plan.stage_by_stage = stage_by_stage(stages, done, plan.samples);
  plan.moved_stage_by_stage = sum_of(plan.stage_by_stage);
  return plan;
}

}  // namespace
}  // namespace detail

LoaderPlan Loader::Impl::explain() const {
  const bool indexed = indices.has_index();
  std::unique_lock lock(mutex);
  const detail::SampleTotals so_far = counters.done();
  const Cache form = cache.in_force();
  lock.unlock();
  LoaderPlan told = detail::plan_of({reader, plan, fields.image.has_value(), form, indexed}, so_far);
  told.retired_batches = slots->retired();
  return told;
}

LoaderPlan Loader::explain() const {
  return impl_->explain();
}

}  // namespace headrace
