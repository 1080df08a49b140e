#include "data/transform/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "core/base/random.h"
#include "data/transform/fuse.h"
#include "data/transform/fused_part.h"
#include "data/transform/operation_error.h"

namespace headrace::transform {
namespace {

const FusedPart* part_of(const Operation& operation) {
  const Fusion* const fusion = operation.fusion();
  return fusion == nullptr ? nullptr : &fusion->part;
}

// The place in the shared stream; none for an operation that is not in it.
std::optional<std::size_t> place_in_stream(const Operation& operation) {
  const FusedPart* const part = part_of(operation);
  if (part == nullptr) return std::nullopt;
  if (std::holds_alternative<RandomResizedCropPart>(*part)) return 0;
  if (const auto* crop = std::get_if<RandomCropPart>(part)) return crop->pad.is_any() ? 1 : 0;
  if (std::holds_alternative<FlipPart>(*part)) return 2;
  return std::nullopt;
}

// The order in which the one pass works.
constexpr int kPlaceOfPad = 2;
int place_in_pass(const FusedPart& part) {
  if (std::holds_alternative<ResizePart>(part)) return 0;
  if (const auto* crop = std::get_if<RandomCropPart>(&part); crop != nullptr && crop->pad.is_any()) {
    return kPlaceOfPad;
  }
  if (std::holds_alternative<FlipPart>(part)) return 3;
  if (std::holds_alternative<ToDtypePart>(part)) return 4;
  if (std::holds_alternative<NormalizePart>(part)) return 5;
  return 1;
}

void check_type(const Operation& operation, const Operation* before, DType found) {
  if (operation.takes(found)) return;
  const bool wants_pixels = operation.takes(DType::u8);
  fail(ErrorCode::invalid_argument, "transform: {} wants {}, and gets {}{}; put it {} ToDtype", operation.name(),
       wants_pixels ? "uint8 pixels" : "float32 or bfloat16", name_of(found),
       before == nullptr ? std::string(" of the source") : fmt::format(" from {}", before->name()),
       wants_pixels ? "before" : "behind");
}

// What an operation, which may be a user's, says that it leaves.
void check_image(const Operation& operation, const ImageSpec& image) {
  const auto& [height, width, channels] = image.size;
  if (channels < 1 || channels > 4) {
    fail(ErrorCode::invalid_argument, "transform: {} leaves images of {} channels; wanted 1 to 4", operation.name(),
         channels);
  }
  const bool are_both = height > 0 && width > 0, are_none = height == 0 && width == 0;
  if (!are_both && !are_none) {
    fail(ErrorCode::invalid_argument,
         "transform: {} leaves images of {} x {}; wanted height and width, or 0 x 0 where each image has a size of its "
         "own",
         operation.name(), height, width);
  }
  if (image.dtype != DType::u8 && image.dtype != DType::f32 && image.dtype != DType::bf16) {
    fail(ErrorCode::invalid_argument, "transform: {} leaves images of {}; wanted uint8, float32 or bfloat16",
         operation.name(), name_of(image.dtype));
  }
}

PixelType type_of(DType dtype) noexcept {
  return dtype == DType::f32 ? PixelType::f32 : dtype == DType::bf16 ? PixelType::bf16 : PixelType::u8;
}

}  // namespace

Operations operations_of(std::span<const TransformSpec> specs) {
  Operations operations;
  for (const TransformSpec& spec : specs) operations.push_back(make_operation(spec));
  return operations;
}

std::uint64_t operation_key(std::string_view name, int ordinal) {
  return xxh3(std::as_bytes(std::span<const char>{fmt::format("headrace.operation:{}:{}", name, ordinal)}));
}

Plan::Plan(Operations operations, Schema in, PixelLayout layout, Fuse fuse) : schema_(std::move(in)), layout_(layout) {
  const auto image = schema_.image();
  if (!image) fail(ErrorCode::invalid_argument, "transform: the samples have no image: {}", schema_.text());
  image_ = *image;
  sort_out(std::move(operations));
  images_ = images_between();
  size_ = images_.back().size;
  type_ = type_of(images_.back().dtype);
  if (!size_.is_fixed()) {
    fail(ErrorCode::invalid_argument,
         "transform: {} leaves each image with a size of its own; wanted a crop, or a Resize to height and width, in "
         "the "
         "list",
         operations_.empty() ? std::string_view("a list without operations") : operations_.back()->name());
  }
  for (const auto& operation : over_batches_) {
    check_type(*operation, operations_.empty() ? nullptr : operations_.back().get(), images_.back().dtype);
  }
  divide(fuse);
  find_partners();
  assign_streams();
}

void Plan::sort_out(Operations operations) {
  for (auto& operation : operations) {
    if (operation == nullptr) fail(ErrorCode::invalid_argument, "transform: a list with an operation that is null");
    const bool is_over_batches = operation->over() == Operation::Over::batch;
    if (!is_over_batches && !over_batches_.empty()) {
      fail(ErrorCode::invalid_argument, "transform: {} after {}, which works on whole batches; wanted it before",
           operation->name(), over_batches_.back()->name());
    }
    find_fields(*operation);
    (is_over_batches ? over_batches_ : operations_).push_back(std::move(operation));
  }
}

void Plan::find_fields(const Operation& operation) {
  std::vector<std::size_t>& positions = fields_.emplace_back();
  for (const std::string& name : operation.fields()) {
    const auto position = schema_.find(name);
    if (!position || *position == image_) {
      fail(ErrorCode::invalid_argument, "transform: {} wants a field {} beside the image; the samples have {}",
           operation.name(), name, schema_.text());
    }
    positions.push_back(*position);
  }
}

void Plan::find_partners() {
  for (std::size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    if (step.fused || step.count == 0 || operations_[step.first]->partners_max() == 0) continue;
    const Operation& operation = *operations_[step.first];
    if (operation.partners_max() > kPartnersMax) {
      fail(ErrorCode::invalid_argument, "transform: {} reads {} other samples; wanted at most {}", operation.name(),
           operation.partners_max(), kPartnersMax);
    }
    if (partner_step_) {
      fail(ErrorCode::invalid_argument, "transform: {} and {} both read other samples; wanted one in a list",
           operations_[steps_[*partner_step_].first]->name(), operation.name());
    }
    partner_step_ = s;
    for (std::size_t i = 0; i < operation.partners_max(); ++i) {
      const std::string text = fmt::format("partner:{}", i);
      partner_keys_.push_back(operation_key(operation.name(), 0) ^ xxh3(std::as_bytes(std::span{text})));
    }
  }
}

std::vector<ImageSpec> Plan::images_between() const {
  const Shape& shape = schema_[image_].shape;
  const bool is_fixed = shape[0] != kRagged && shape[1] != kRagged;
  const auto side = [&](std::size_t axis) { return is_fixed ? static_cast<int>(shape[axis]) : 0; };
  std::vector<ImageSpec> images{{{side(0), side(1), static_cast<int>(shape[2])}, DType::u8}};
  const Operation* before = nullptr;
  for (const auto& operation : operations_) {
    check_type(*operation, before, images.back().dtype);
    images.push_back(named(*operation, [&] { return operation->schema(images.back()); }));
    check_image(*operation, images.back());
    before = operation.get();
  }
  return images;
}

void Plan::divide(Fuse fuse) {
  for (std::size_t at = 0; at < operations_.size();) at = add_step(at, fuse);
  // A batch has its own order of values, which an operation by itself does not write.
  if (steps_.empty() || !steps_.back().fused) {
    Step last{.first = operations_.size()};
    if (images_.back().dtype == DType::u8) last.fused = Fusing{images_.back().size}.stage(layout_);
    steps_.push_back(std::move(last));
  }
  first_ = steps_.front().fused ? *steps_.front().fused : Fusing{images_.front().size}.stage(layout_);
}

// Returns where the next one begins.
std::size_t Plan::add_step(std::size_t first, Fuse fuse) {
  Step step{.first = first, .count = 1, .why = first == 0 ? "" : reason(first)};
  if (fuse == Fuse::as_far_as_possible && images_[first].dtype == DType::u8) {
    Fusing fusing{images_[first].size};
    std::size_t end = first;
    for (; end < operations_.size(); ++end) {
      const FusedPart* const part = part_of(*operations_[end]);
      if (part == nullptr || !fusing.take(*part)) break;
    }
    if (end > first && fusing.has_fixed_size()) {
      const bool is_last = end == operations_.size();
      step.count = end - first;
      step.fused = fusing.stage(is_last ? layout_ : PixelLayout::nhwc);
      // Between operations numbers are float32.
      if (!is_last && step.fused->form.type == PixelType::bf16) step.fused->form.type = PixelType::f32;
    }
  }
  steps_.push_back(std::move(step));
  return first + steps_.back().count;
}

// Why the operation `at`, which is not the first, begins a step.
std::string Plan::reason(std::size_t at) const {
  const Operation &before = *operations_[at - 1], &here = *operations_[at];
  const FusedPart *const its = part_of(here), *const earlier = part_of(before);
  const auto alone = [](const Operation& operation) {
    return fmt::format("{} runs by itself: no pass takes it over", operation.name());
  };
  if (its == nullptr || std::holds_alternative<PadPart>(*its)) return alone(here);
  if (earlier == nullptr || std::holds_alternative<PadPart>(*earlier)) return alone(before);
  if (place_in_pass(*its) < place_in_pass(*earlier)) {
    return fmt::format("{} before {}: behind it, both run in one pass", before.name(), here.name());
  }
  if (place_in_pass(*its) == place_in_pass(*earlier)) {
    return fmt::format("a pass does one of {} and {}", before.name(), here.name());
  }
  const ImageSpec& between = images_[at];
  if (between.dtype != DType::u8) {
    return fmt::format("{} gets {}: a pass begins with uint8 pixels", here.name(), name_of(between.dtype));
  }
  if (!between.size.is_fixed()) {
    const bool is_crop = place_in_pass(*its) <= kPlaceOfPad;
    return is_crop ? fmt::format("{} is of a size that not every image has then", here.name())
                   : fmt::format("{} leaves each image with a size of its own", before.name());
  }
  const auto apart = [](const Operation& operation, const FusedPart& part) {
    return fmt::format("{} runs by itself: {}", operation.name(),
                       place_in_pass(part) == kPlaceOfPad ? "a pass crops padded images to the size that they had"
                                                          : "a pass crops what it has resized");
  };
  if (!steps_.back().fused) return apart(before, *earlier);
  if (place_in_pass(*its) == kPlaceOfPad) return apart(here, *its);
  return fmt::format("{} is larger than what {} leaves", here.name(), before.name());
}

void Plan::assign_streams() {
  std::map<std::string_view, int> seen;
  for (const auto& operation : over_batches_) {
    batch_keys_.push_back(operation_key(operation->name(), seen[operation->name()]++));
  }
  for (std::size_t i = 0; i < operations_.size(); ++i) {
    const Operation& operation = *operations_[i];
    const int ordinal = seen[operation.name()]++;
    if (!operation.draws()) continue;
    const auto place = place_in_stream(operation);
    if (place && shared_[*place] == kNone) {
      shared_[*place] = i;
    } else {
      own_.push_back({i, operation_key(operation.name(), ordinal)});
    }
  }
}

std::size_t Plan::fields_wanted() const noexcept {
  std::size_t wanted = 0;
  for (const auto& positions : fields_) wanted += positions.size();
  return wanted;
}

bool Plan::draws() const noexcept {
  const auto draws = [](const auto& operation) { return operation->draws(); };
  return std::any_of(operations_.begin(), operations_.end(), draws) ||
         std::any_of(over_batches_.begin(), over_batches_.end(), draws);
}

void Plan::draw(const SampleKey& key, std::span<const ImageSpec> images, std::span<Drawn> drawn,
                std::int64_t retry) const {
  const auto draw_one = [&](std::size_t i, SampleRandom& random) {
    drawn[i] = named(*operations_[i], [&] { return operations_[i]->draw(random, images[i].size); });
  };
  SampleRandom shared{key.seed, key.epoch, key.index};
  for (const std::size_t i : shared_) {
    if (i < drawn.size()) draw_one(i, shared);
  }
  for (const auto& [i, its_key] : own_) {
    if (i >= drawn.size()) continue;
    std::uint64_t seed = key.seed ^ its_key;
    if (retry > 0 && operations_[i]->partners_max() > 0) seed ^= operation_key("retry", static_cast<int>(retry));
    SampleRandom random{seed, key.epoch, key.index};
    draw_one(i, random);
  }
}

std::vector<TransformStep> Plan::explain() const {
  std::vector<TransformStep> told;
  for (const Step& step : steps_) {
    if (step.count == 0) continue;
    TransformStep& one =
        told.emplace_back(TransformStep{.operations = {}, .fused = step.fused.has_value(), .why = step.why});
    for (std::size_t i = step.first; i < step.first + step.count; ++i) {
      one.operations.emplace_back(operations_[i]->name());
    }
  }
  for (const auto& operation : over_batches_) {
    told.push_back(
        {{std::string(operation->name())}, false, fmt::format("{} works on whole batches", operation->name())});
  }
  return told;
}

}  // namespace headrace::transform
