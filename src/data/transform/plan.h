// A list of operations, compiled: which of them run in one pass, what each gets and leaves, and what it draws from.
#pragma once

#include <headrace/field.h>
#include <headrace/operation.h>
#include <headrace/options/transform.h>
#include <headrace/transform.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/transform/fused_stage.h"

namespace headrace::transform {

using Operations = std::vector<std::shared_ptr<const Operation>>;

Operations operations_of(std::span<const TransformSpec> specs);

// What is added to the seed for the draws of an operation that has a stream of its own. `ordinal`: among those of its
// name, from 0.
std::uint64_t operation_key(std::string_view name, int ordinal);

// Never changes once made; all threads read it.
class Plan {
 public:
  // Operations [first, first + count), in one pass where `fused` says how; one by itself otherwise, or none, after the
  // last: numbers are brought into the batch's order.
  struct Step {
    std::size_t first = 0;
    std::size_t count = 0;
    std::optional<FusedStage> fused{};
    std::string why{};  // Not in one pass with the step before.
  };
  enum class Fuse { as_far_as_possible, nothing };

  // Of samples of `in`, which have an image. Error{invalid_argument} names the operation: a type that it does not take,
  // a field that is not there, a size that is not fixed at the end, mean or std that do not fit the channels, an
  // operation over samples after one over batches, images that no kernel takes.
  Plan(Operations operations, Schema in, PixelLayout layout, Fuse fuse = Fuse::as_far_as_possible);

  const Schema& schema() const noexcept { return schema_; }
  std::size_t image() const noexcept { return image_; }                      // Of the schema.
  const Operations& operations() const noexcept { return operations_; }      // Over samples,
  const Operations& over_batches() const noexcept { return over_batches_; }  // and over batches.
  // Before each operation, and after the last. A sample's agree with them; a size of 0 x 0 is each sample's own.
  std::span<const ImageSpec> images() const noexcept { return images_; }
  // Of the schema, those of fields() of an operation over samples; over batches likewise, counted on from these.
  std::span<const std::size_t> fields_of(std::size_t operation) const noexcept { return fields_[operation]; }
  std::size_t fields_wanted() const noexcept;  // By operations, beside the image.
  // The step whose operation reads other samples; none: there is no such.
  std::optional<std::size_t> partner_step() const noexcept { return partner_step_; }
  std::span<const Step> steps() const noexcept { return steps_; }
  // One pass does it all: first() is that.
  bool is_one_pass() const noexcept { return steps_.size() == 1 && steps_[0].fused; }
  // What is done with an image as it is stored: the first step, or reading it as it is.
  const FusedStage& first() const noexcept { return first_; }

  const Geometry& size() const noexcept { return size_; }  // Of what comes out.
  PixelType type() const noexcept { return type_; }
  PixelLayout layout() const noexcept { return layout_; }
  bool draws() const noexcept;

  // What each operation decides of a sample, whose image is `images[i]` before operation i. Crop, pad and flip, the
  // first of each, share the stream (seed, epoch, drawn_as) in this order, wherever they stand; every other operation
  // has its own. Of the first `drawn.size()` operations. `retry`: which sample this is in the place of one that could
  // not be made, from 1; only what an operation with partners draws goes by it.
  void draw(const SampleKey& key, std::span<const ImageSpec> images, std::span<Drawn> drawn,
            std::int64_t retry = 0) const;
  // The seed of what is drawn for the partner `partner` of a sample, before it comes to the operation that reads it.
  std::uint64_t partner_seed(std::uint64_t seed, std::size_t partner) const { return seed ^ partner_keys_[partner]; }
  std::uint64_t batch_key(std::size_t operation) const noexcept { return batch_keys_[operation]; }

  std::vector<TransformStep> explain() const;

 private:
  void sort_out(Operations operations);
  void find_fields(const Operation& operation);
  void find_partners();
  std::vector<ImageSpec> images_between() const;
  void divide(Fuse fuse);
  std::size_t add_step(std::size_t first, Fuse fuse);
  void assign_streams();
  std::string reason(std::size_t at) const;

  Schema schema_;
  std::size_t image_ = 0;
  Operations operations_, over_batches_;
  std::vector<ImageSpec> images_;
  std::vector<std::vector<std::size_t>> fields_;
  std::optional<std::size_t> partner_step_;
  PixelLayout layout_;
  Geometry size_;
  PixelType type_ = PixelType::u8;
  std::vector<Step> steps_;
  FusedStage first_;
  // Of the operations; of those in the shared stream in its order, kNone where there is none.
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::array<std::size_t, 3> shared_{kNone, kNone, kNone};
  struct Own {
    std::size_t operation;
    std::uint64_t key;
  };
  std::vector<Own> own_;
  std::vector<std::uint64_t> batch_keys_, partner_keys_;
};

}  // namespace headrace::transform
