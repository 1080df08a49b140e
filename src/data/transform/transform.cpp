#include <headrace/error.h>
#include <headrace/transform.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "data/source/payload_check.h"
#include "data/transform/eval_transform.h"
#include "data/transform/plan_runner.h"

namespace headrace {

using transform::Plan;

struct Transform::Impl {
  // `how`: of decoding, and the layout.
  Impl(Schema in, transform::Operations operations, DataOptions how)
      : plan(std::move(operations), std::move(in), how.transform.layout), options(std::move(how)) {
    std::string_view other;
    if (!plan.over_batches().empty()) other = plan.over_batches().front()->name();
    if (plan.partner_step()) other = plan.operations()[plan.steps()[*plan.partner_step()].first]->name();
    if (other.empty()) return;
    fail(ErrorCode::invalid_argument, "transform: {} works on several samples, which a Loader alone has", other);
  }

  void apply(Sample& sample, const SampleKey& key, std::span<std::byte> out);
  void check_fields(const Sample& sample) const;

  std::size_t image_bytes() const {
    const Geometry& size = plan.size();
    return ImageSpec{size, DType::u8}.bytes() * transform::bytes_of(plan.type());
  }

  std::unique_ptr<detail::ImageWorkspace> take();
  void put_back(std::unique_ptr<detail::ImageWorkspace> workspace);

  const Plan plan;
  const DataOptions options;
  std::mutex mutex;  // Guards `idle`.
  std::vector<std::unique_ptr<detail::ImageWorkspace>> idle;
};

std::unique_ptr<detail::ImageWorkspace> Transform::Impl::take() {
  const std::lock_guard lock(mutex);
  if (idle.empty()) return std::make_unique<detail::ImageWorkspace>();
  auto workspace = std::move(idle.back());
  idle.pop_back();
  return workspace;
}

void Transform::Impl::put_back(std::unique_ptr<detail::ImageWorkspace> workspace) {
  workspace->trim();
  const std::lock_guard lock(mutex);
  idle.push_back(std::move(workspace));
}

// Those that operations read, which rely on their types and shapes.
void Transform::Impl::check_fields(const Sample& sample) const {
  for (std::size_t i = 0; i < plan.operations().size(); ++i) {
    for (const std::size_t position : plan.fields_of(i)) {
      if (const auto fault = payload_fault(plan.schema()[position], sample[position], options.limits())) {
        throw Error(fault->code, "transform: " + fault->text);
      }
    }
  }
}

// `sample` holds nothing in its buffers.
void Transform::Impl::apply(Sample& sample, const SampleKey& key, std::span<std::byte> out) {
  if (out.size() != image_bytes()) {
    fail(ErrorCode::invalid_argument, "transform: room for {} bytes; an image takes {}", out.size(), image_bytes());
  }
  const FieldSpec& field = plan.schema()[plan.image()];
  const Payload& payload = sample[plan.image()];
  if (const auto fault = payload_fault(field, payload, options.limits())) {
    throw Error(fault->code, "transform: " + fault->text);
  }
  if (payload.kind != Payload::Kind::bytes) {
    fail(ErrorCode::corrupt_data, "transform: field {}: the sample lacks its image", field.name);
  }
  check_fields(sample);
  const detail::EpochTransform epoch{nullptr, plan.first(), options, key.seed, key.epoch, nullptr};
  // One that fails is not put back: what it holds is in no known state.
  auto workspace = take();
  detail::ImageMaker maker{epoch, *workspace, nullptr};
  if (plan.is_one_pass()) {
    maker.make(payload, 1, key.index, key.index, out);
  } else {
    detail::PlanRunner runner{plan, epoch, maker, *workspace};
    runner.make({sample, sample, 1, key.index}, {.drawn_as = key.index}, nullptr, out);
  }
  put_back(std::move(workspace));
}

Transform::Transform(Schema in, const std::vector<TransformSpec>& operations, PixelLayout layout)
    : Transform(std::move(in), transform::operations_of(operations), layout) {}

Transform::Transform(Schema in, std::vector<std::shared_ptr<const Operation>> operations, PixelLayout layout)
    : impl_(
          std::make_unique<Impl>(std::move(in), std::move(operations), DataOptions{.transform = {.layout = layout}})) {}

Transform::Transform(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Transform Transform::from_run(const std::filesystem::path& run) {
  transform::EvalTransform read = transform::read_eval_transform(run);
  try {
    transform::Operations operations = transform::operations_of(read.data.transforms);
    return Transform{std::make_unique<Impl>(std::move(read.samples), std::move(operations), std::move(read.data))};
  } catch (const Error& error) {
    throw Error(error.code(), (run / transform::kEvalTransformFile).string() + ": " + error.what());
  }
}

Transform::~Transform() = default;
Transform::Transform(Transform&&) noexcept = default;
Transform& Transform::operator=(Transform&&) noexcept = default;

Geometry Transform::size() const noexcept {
  return impl_->plan.size();
}

DType Transform::dtype() const noexcept {
  switch (impl_->plan.type()) {
    case PixelType::f32:
      return DType::f32;
    case PixelType::bf16:
      return DType::bf16;
    case PixelType::u8:
      break;
  }
  return DType::u8;
}

PixelLayout Transform::layout() const noexcept {
  return impl_->plan.layout();
}

std::size_t Transform::image_bytes() const noexcept {
  return impl_->image_bytes();
}

void Transform::apply(std::span<const std::uint8_t> file, std::span<std::byte> image) const {
  apply(Payload::of_file(file), image);
}

void Transform::apply(const Payload& stored, std::span<std::byte> image) const {
  if (impl_->plan.draws()) {
    fail(ErrorCode::invalid_argument, "transform: the list draws at random; wanted a sample's key: seed, epoch, index");
  }
  apply(stored, SampleKey{}, image);
}

void Transform::apply(const Payload& stored, const SampleKey& key, std::span<std::byte> image) const {
  if (const std::size_t fields = impl_->plan.fields_wanted(); fields > 0) {
    fail(ErrorCode::invalid_argument, "transform: the list reads {} other fields; wanted a sample", fields);
  }
  Sample sample{impl_->plan.schema().size()};
  sample[impl_->plan.image()] = stored;
  impl_->apply(sample, key, image);
}

void Transform::apply(const Sample& in, const SampleKey& key, Sample& out, std::span<std::byte> image) const {
  const Schema& schema = impl_->plan.schema();
  if (in.size() != schema.size() || out.size() != schema.size()) {
    fail(ErrorCode::invalid_argument, "transform: a sample of {} fields into one of {}; wanted {}", in.size(),
         out.size(), schema.text());
  }
  std::copy(in.payloads().begin(), in.payloads().end(), out.payloads().begin());
  impl_->apply(out, key, image);
}

void Transform::apply(const Sample& in, const SampleKey& key, std::span<std::byte> image) const {
  Sample out{in.size()};
  apply(in, key, out, image);
}

std::vector<TransformStep> Transform::explain() const {
  return impl_->plan.explain();
}

}  // namespace headrace
