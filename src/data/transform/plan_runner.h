// A sample's way through a plan that is more than one pass.
#pragma once

#include <headrace/sample.h>
#include <headrace/source.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "data/transform/image_maker.h"
#include "data/transform/plan.h"

namespace headrace::detail {

// A sample that has been read. Operations that change a field leave it in `sample`, with its bytes in the buffers of
// `changed`, which may be the same where those of `sample` hold nothing.
struct SampleInHand {
  Sample& sample;
  Sample& changed;
  int divisor = 1;  // HeldImage's.
  std::int64_t index = 0;
};

// Reads the samples that an operation wants beside one.
class PartnerReader {
 public:
  // Valid until the next call for the same partner. Throws Error when it cannot be read.
  virtual SampleInHand read(std::size_t partner, std::int64_t position) = 0;
  virtual std::string name_at(std::int64_t position) = 0;  // For messages.

 protected:
  ~PartnerReader() = default;
};

// Of one thread at a time.
class PlanRunner {
 public:
  struct Draws {
    std::int64_t drawn_as = 0;
    EpochPlace place{};
    std::int64_t retry = 0;  // As Plan::draw() has it.
  };

  // `epoch.stage` is the plan's first(); `maker` is of this epoch and workspace. `classes`: the source's.
  PlanRunner(const transform::Plan& plan, const EpochTransform& epoch, ImageMaker& maker, ImageWorkspace& workspace,
             std::int64_t classes = kUnknownClasses)
      : plan_(plan), epoch_(epoch), maker_(maker), workspace_(workspace), classes_(classes) {}

  // As ImageMaker::make(); fields that operations change are changed in `own`. `partners`: there where the plan has a
  // partner_step().
  void make(const SampleInHand& own, const Draws& draws, PartnerReader* partners, std::span<std::byte> out);

 private:
  using Step = transform::Plan::Step;
  // One sample, with the image before each operation and what each of them drew.
  struct Course {
    const SampleInHand& in;
    std::span<ImageSpec> images;
    std::span<Drawn> drawn;
  };

  void start(Course& course, std::uint64_t seed, const Draws& draws);
  ImageSpec image_after(std::size_t operation, const ImageSpec& image) const;
  void check_pixels(const Course& course, std::size_t after) const;
  ImageView run(const Course& course, std::size_t from, std::size_t to, ImageView image, std::span<std::byte> out);
  void run_step(const Course& course, std::size_t s, const ImageView& image, std::span<std::byte> out);
  void run_alone(const Course& course, const Step& step, const ImageView& image, std::span<std::byte> out);
  void meet_partners(Course& own, const Draws& draws, PartnerReader& partners);
  void meet_partner(std::size_t i, const Draws& draws, std::int64_t position, PartnerReader& partners);
  void take_fields(std::size_t operation, const Sample& sample, std::vector<Payload>& fields) const;
  void put_fields(std::size_t operation, const SampleInHand& in, const Sample& changed) const;
  void check_left(std::size_t operation, std::size_t field, const Payload& payload) const;
  transform::CropWindow window_of(const Course& course, const Step& step) const;
  transform::NormalizeGeometry geometry_of(const Course& course, const Step& step) const;
  bool is_last(std::size_t step) const { return step + 1 == plan_.steps().size(); }

  const transform::Plan& plan_;
  const EpochTransform& epoch_;
  ImageMaker& maker_;
  ImageWorkspace& workspace_;
  const std::int64_t classes_;
};

}  // namespace headrace::detail
