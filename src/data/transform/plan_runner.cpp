#include "data/transform/plan_runner.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <variant>

#include "core/base/fail.h"
#include "core/base/scratch.h"
#include "data/source/payload_check.h"
#include "data/transform/fused_part.h"
#include "data/transform/operation_error.h"

namespace headrace::detail {
namespace {

std::ptrdiff_t row_bytes(const ImageSpec& image) noexcept {
  return static_cast<std::ptrdiff_t>(image.size.width) * static_cast<std::ptrdiff_t>(image.pixel_bytes());
}

std::string text_of(const ImageSpec& image) {
  const auto& [height, width, channels] = image.size;
  return fmt::format("{} x {} x {} {}", height, width, channels, name_of(image.dtype));
}

}  // namespace

void PlanRunner::make(const SampleInHand& own, const Draws& draws, PartnerReader* partners, std::span<std::byte> out) {
  const std::size_t operations = plan_.operations().size(), steps = plan_.steps().size();
  workspace_.images.resize(operations + 1);
  workspace_.drawn.resize(operations);
  workspace_.outputs.resize(operations);
  Course course{own, workspace_.images, workspace_.drawn};
  start(course, epoch_.seed, draws);
  const auto meeting = plan_.partner_step();
  if (!meeting) {
    run(course, 0, steps, {}, out);
    return;
  }
  HEADRACE_CHECK(partners != nullptr, "transform: nobody reads the partners of sample {}", own.index);
  const ImageSpec& before = workspace_.images[plan_.steps()[*meeting].first];
  workspace_.tiles.resize(kPartnersMax + 1);
  const std::span tile = scratch_of(workspace_.tiles[0], before.bytes());
  const ImageView image = run(course, 0, *meeting, {}, tile);
  meet_partners(course, draws, *partners);
  run(course, *meeting, steps, image, out);
}

// All is drawn before the first operation runs: those that share a stream draw from it in another order than the
// list's.
void PlanRunner::start(Course& course, std::uint64_t seed, const Draws& draws) {
  course.images[0] = {maker_.begin(course.in.sample[plan_.image()], course.in.divisor), DType::u8};
  for (const Step& step : plan_.steps()) {
    const std::size_t end = step.first + step.count;
    if (end >= course.images.size()) break;  // A partner goes no further.
    for (std::size_t i = step.first; i < end; ++i) course.images[i + 1] = image_after(i, course.images[i]);
    if (step.count > 0) check_pixels(course, end - 1);
  }
  plan_.draw({seed, epoch_.epoch, draws.drawn_as}, course.images, course.drawn, draws.retry);
}

// Passes, buffers and the batch were made for what the operation said when the list was compiled.
ImageSpec PlanRunner::image_after(std::size_t operation, const ImageSpec& image) const {
  const Operation& its = *plan_.operations()[operation];
  const ImageSpec found = transform::named(its, [&] { return its.schema(image); });
  ImageSpec wanted = plan_.images()[operation + 1];
  const bool has_size = found.size.height > 0 && found.size.width > 0;
  if (has_size && !wanted.size.is_fixed()) {
    wanted.size.height = found.size.height, wanted.size.width = found.size.width;
  }
  if (has_size && found == wanted) return found;
  fail(ErrorCode::invalid_argument, "transform: {} leaves {} of a sample; when the list was compiled it left {}",
       its.name(), text_of(found), text_of(wanted));
}

// What a sample's own size makes of the memory between two steps; a size that the list sets is its author's. A file of
// a hundred bytes could take gigabytes else: Resize of an image one pixel high.
void PlanRunner::check_pixels(const Course& course, std::size_t after) const {
  const Geometry &stored = course.images[0].size, &left = course.images[after + 1].size;
  const std::int64_t pixels = std::int64_t{left.height} * left.width, most = epoch_.options.max_pixels;
  if (plan_.images()[after + 1].size.is_fixed() || pixels <= most) return;
  fail(ErrorCode::unsupported,
       "transform: {} makes {} x {}: {} pixels of an image of {} x {}; wanted at most {} (data.max_pixels)",
       plan_.operations()[after]->name(), left.height, left.width, pixels, stored.height, stored.width, most);
}

// Steps [from, to) on `image`; on the image as it is stored where that is none. The last one writes to `out`, which
// takes what it leaves.
ImageView PlanRunner::run(const Course& course, std::size_t from, std::size_t to, ImageView image,
                          std::span<std::byte> out) {
  const std::span steps = plan_.steps();
  const SampleInHand& in = course.in;
  if (image.data == nullptr && !(to > 0 && steps[0].fused)) image = maker_.whole(in.sample[plan_.image()], in.index);
  if (to == 0) {  // The first operation reads partners: their images take the decoder's memory.
    std::memcpy(out.data(), image.data, out.size());
    return {out.data(), image.image, image.row_bytes};
  }
  for (std::size_t s = from; s < to; ++s) {
    const ImageSpec& result = course.images[steps[s].first + steps[s].count];
    const bool ends = s + 1 == to;
    const std::span<std::byte> room = ends ? out : scratch_of(workspace_.between[s % 2], result.bytes());
    maker_.set_ends_in_batch(is_last(s));
    run_step(course, s, image, room);
    image = {room.data(), result, row_bytes(result)};
  }
  maker_.set_ends_in_batch(true);
  return image;
}

void PlanRunner::run_step(const Course& course, std::size_t s, const ImageView& image, std::span<std::byte> out) {
  const Step& step = plan_.steps()[s];
  if (step.fused && s == 0) {
    const SampleInHand& in = course.in;
    return maker_.finish(in.sample[plan_.image()], in.index, window_of(course, step), geometry_of(course, step), out);
  }
  if (step.fused) return maker_.run(*step.fused, image, window_of(course, step), geometry_of(course, step), out);
  if (step.count > 0) return run_alone(course, step, image, out);
  const std::span numbers{reinterpret_cast<const float*>(image.data), image.image.bytes() / sizeof(float)};
  transform::write_numbers(numbers, image.image.size.channels, plan_.type(), plan_.layout(), out);
  maker_.note(SamplePass::write, static_cast<std::int64_t>(image.image.bytes()), std::ssize(out));
}

void PlanRunner::run_alone(const Course& course, const Step& step, const ImageView& image, std::span<std::byte> out) {
  const std::size_t i = step.first;
  const ImageSpec& result = course.images[i + 1];
  const std::size_t fields = plan_.fields_of(i).size();
  std::span<const Partner> partners;
  if (plan_.partner_step() && &plan_.steps()[*plan_.partner_step()] == &step) partners = workspace_.partners;
  take_fields(i, course.in.sample, workspace_.fields);
  Sample& changed = workspace_.outputs[i];
  if (changed.size() != fields) changed = Sample{fields};
  changed.clear();
  OperationOutput output{{out.data(), result, row_bytes(result)}, &changed};
  const Operation& operation = *plan_.operations()[i];
  const OperationInput input{image, workspace_.fields, partners, &workspace_.resizer};
  transform::named(operation, [&] { operation.apply(input, course.drawn[i], output); });
  put_fields(i, course.in, changed);
  maker_.note(SamplePass::between, static_cast<std::int64_t>(image.image.bytes()),
              static_cast<std::int64_t>(result.bytes()));
}

void PlanRunner::take_fields(std::size_t operation, const Sample& sample, std::vector<Payload>& fields) const {
  fields.clear();
  for (const std::size_t position : plan_.fields_of(operation)) fields.push_back(sample[position]);
}

// Their bytes are copied: the next operation writes its own where these lie.
void PlanRunner::put_fields(std::size_t operation, const SampleInHand& in, const Sample& changed) const {
  for (std::size_t i = 0; const std::size_t position : plan_.fields_of(operation)) {
    const Payload& payload = changed[i++];
    if (payload.kind == Payload::Kind::absent) continue;
    check_left(operation, position, payload);
    Payload& kept = in.sample[position];
    kept = payload;
    if (payload.kind != Payload::Kind::bytes) continue;
    in.changed.buffer(position).assign(payload.bytes.begin(), payload.bytes.end());
    kept.bytes = in.changed.buffer(position);
  }
}

// As what a source gives is checked.
void PlanRunner::check_left(std::size_t operation, std::size_t field, const Payload& payload) const {
  const std::string_view name = plan_.operations()[operation]->name();
  if (const auto fault = payload_fault(plan_.schema()[field], payload, epoch_.options.limits())) {
    fail(ErrorCode::invalid_argument, "transform: {}: {}", name, fault->text);
  }
  if (plan_.schema().class_label() != field) return;
  const auto label = payload.number<std::int64_t>();
  if (label >= 0 && label < classes_) return;
  fail(ErrorCode::invalid_argument, "transform: {}: label {}; wanted {}", name, label,
       classes_ == kUnknownClasses ? std::string("0 or more") : fmt::format("0 to {}", classes_ - 1));
}

void PlanRunner::meet_partners(Course& own, const Draws& draws, PartnerReader& partners) {
  const std::size_t i = plan_.steps()[*plan_.partner_step()].first;
  const Operation& operation = *plan_.operations()[i];
  std::array<std::int64_t, kPartnersMax> positions{};
  const std::span room = std::span{positions}.first(operation.partners_max());
  const std::size_t count =
      transform::named(operation, [&] { return operation.partners(own.drawn[i], draws.place, room); });
  if (count > operation.partners_max()) {
    fail(ErrorCode::invalid_argument, "transform: {} reads {} other samples; it said at most {}", operation.name(),
         count, operation.partners_max());
  }
  workspace_.partners.resize(count);
  workspace_.partner_fields.resize(count);
  workspace_.partner_images.resize(i + 1);
  workspace_.partner_drawn.resize(i);
  for (std::size_t partner = 0; partner < count; ++partner) {
    const std::int64_t position = positions[partner];
    if (position < 0 || position >= draws.place.positions) {
      fail(ErrorCode::invalid_argument, "transform: {} reads position {}; the epoch has positions 0 to {}",
           operation.name(), position, draws.place.positions - 1);
    }
    try {
      meet_partner(partner, draws, position, partners);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("transform: {} reads {}: {}", operation.name(), partners.name_at(position),
                                            error.what()));
    }
  }
}

void PlanRunner::meet_partner(std::size_t i, const Draws& draws, std::int64_t position, PartnerReader& partners) {
  const std::size_t meeting = *plan_.partner_step(), operation = plan_.steps()[meeting].first;
  const SampleInHand in = partners.read(i, position);
  Course course{in, workspace_.partner_images, workspace_.partner_drawn};
  start(course, plan_.partner_seed(epoch_.seed, i), draws);
  const std::span tile = scratch_of(workspace_.tiles[i + 1], course.images[operation].bytes());
  Partner& partner = workspace_.partners[i];
  partner.image = run(course, 0, meeting, {}, tile);
  take_fields(operation, in.sample, workspace_.partner_fields[i]);
  partner.fields = workspace_.partner_fields[i];
}

// What a pass would draw is drawn already, operation by operation.
transform::CropWindow PlanRunner::window_of(const Course& course, const Step& step) const {
  const Geometry& in = course.images[step.first].size;
  const transform::CropStage& crop = step.fused->crop;
  if (crop.kind == transform::CropKind::none) return {};
  // The crop is the first of them, or behind a Resize.
  const std::size_t resizes = crop.kind == transform::CropKind::random ? 1 : 0;
  return transform::crop_drawn(crop, in.height, in.width, course.drawn[step.first + resizes]);
}

transform::NormalizeGeometry PlanRunner::geometry_of(const Course& course, const Step& step) const {
  const auto& [height, width, channels] = step.fused->out;
  transform::NormalizeGeometry geometry{.height = height, .width = width, .channels = channels};
  for (std::size_t i = step.first; i < step.first + step.count; ++i) {
    const transform::FusedPart& part = plan_.operations()[i]->fusion()->part;
    const Drawn& drawn = course.drawn[i];
    if (std::holds_alternative<transform::FlipPart>(part)) geometry.flip = drawn.number(0) != 0;
    if (const auto* crop = std::get_if<transform::RandomCropPart>(&part); crop != nullptr && crop->pad.is_any()) {
      geometry.offset_y = drawn.number(0) - crop->pad.top;
      geometry.offset_x = drawn.number(1) - crop->pad.left;
    }
  }
  return geometry;
}

}  // namespace headrace::detail
