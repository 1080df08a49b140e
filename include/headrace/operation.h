// What is done to a sample on its way into a batch, one operation at a time. May change until version 1.0.
#pragma once

#include <headrace/dtype.h>
#include <headrace/options/transform.h>
#include <headrace/options/transforms.h>
#include <headrace/random.h>
#include <headrace/sample.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {
namespace transform {
class Resizer;
struct Fusion;
}  // namespace transform

// Of an image. 0 x 0: each has a size of its own.
struct Geometry {
  int height = 0;
  int width = 0;
  int channels = 0;

  bool is_fixed() const noexcept { return height > 0; }
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

// An image between two operations.
struct ImageSpec {
  Geometry size{};
  // uint8 pixels of 0 to 255, or float32. bfloat16: float32 until the batch is written, which rounds to the nearest.
  DType dtype = DType::u8;

  DType held() const noexcept { return dtype == DType::u8 ? DType::u8 : DType::f32; }
  std::size_t pixel_bytes() const noexcept {
    return static_cast<std::size_t>(size.channels) * static_cast<std::size_t>(bytes_of(held()));
  }
  std::size_t bytes() const noexcept {
    return static_cast<std::size_t>(size.height) * static_cast<std::size_t>(size.width) * pixel_bytes();
  }
  friend bool operator==(const ImageSpec&, const ImageSpec&) = default;
};

// Rows of pixels, top to bottom, channels interleaved, of `image.held()`; `row_bytes` from one row to the next.
struct ImageView {
  const std::byte* data = nullptr;
  ImageSpec image{};
  std::ptrdiff_t row_bytes = 0;

  const std::byte* at(int y, int x) const noexcept {
    return data + y * row_bytes + x * static_cast<std::ptrdiff_t>(image.pixel_bytes());
  }
};
struct ImageTarget {
  std::byte* data = nullptr;
  ImageSpec image{};
  std::ptrdiff_t row_bytes = 0;

  std::byte* at(int y, int x) const noexcept {
    return data + y * row_bytes + x * static_cast<std::ptrdiff_t>(image.pixel_bytes());
  }
};

// What an operation decided at random: numbers of its own meaning.
struct Drawn {
  std::array<double, 16> numbers{};

  int number(std::size_t i) const { return static_cast<int>(numbers.at(i)); }
};

inline constexpr std::size_t kPartnersMax = 15;  // Samples that an operation reads beside one.

// Another sample, as the operations before this one have left it.
struct Partner {
  ImageView image{};
  std::span<const Payload> fields{};
};
struct OperationInput {
  ImageView image{};
  std::span<const Payload> fields{};    // Those of Operation::fields(), in its order; so of partners.
  std::span<const Partner> partners{};  // Those of Operation::partners(), in its order.
  // Memory for resizing that is kept from image to image; null outside a plan.
  transform::Resizer* resizer = nullptr;
};
struct OperationOutput {
  ImageTarget image{};  // Of what schema() said. Its bytes may be anything yet; they overlap the input's nowhere.
  // Of Operation::fields(), in its order, with memory for their bytes. What is left absent stays as it is.
  Sample* fields = nullptr;
};

// Its value as text, as TOML has it. Neither has a line break.
struct OperationParameter {
  std::string name, value;
};

// Where a sample stands in its epoch, and how many places there are. One that stands in for a corrupt one: anywhere.
struct EpochPlace {
  std::int64_t position = 0;
  std::int64_t positions = 1;
};

// A batch that is whole but for the operations over it. Samples with valid[i] = 0 hold a place alone.
struct BatchView {
  std::int64_t size = 0;
  std::span<const std::uint8_t> valid{};
  // Sample by sample, in the batch's type and layout, sample_bytes() from one to the next.
  std::span<std::byte> images{};
  // Of one. Its bytes() are those between operations, where a bfloat16 takes four; here it takes two.
  ImageSpec image{};
  PixelLayout layout = PixelLayout::nchw;
  std::span<const std::span<std::byte>> fields{};  // Those of Operation::fields(), in its order, sample by sample.

  std::size_t sample_bytes() const noexcept { return size == 0 ? 0 : images.size() / static_cast<std::size_t>(size); }
};

// One of a list. It never changes once made, and several threads call it at once; all lies in what it is given.
class Operation {
 public:
  enum class Over { sample, batch };  // Those over the batch stand at the end of a list.

  virtual ~Operation() = default;

  // As in a recipe and in messages. Valid as long as the operation.
  virtual std::string_view name() const noexcept = 0;
  virtual Over over() const noexcept { return Over::sample; }
  // What it was made with, as far as it decides what comes out: a state of a Loader holds it, and a Loader whose
  // operation tells another value refuses that state by the parameter's name.
  virtual std::vector<OperationParameter> parameters() const { return {}; }
  // Fields beside the image that it reads or changes, by name; over a batch dense ones. A list is refused where a
  // sample lacks one.
  virtual std::vector<std::string> fields() const { return {}; }
  // Whether it takes images of this type of element.
  virtual bool takes(DType dtype) const noexcept { return dtype == DType::u8; }
  // What comes out of such an image. Called when a list is compiled, where the size may be 0 x 0, and for each sample,
  // with the size it has, before anything is drawn: what comes out never depends on draws. Of 1 to 4 channels, height
  // and width or 0 x 0, uint8, float32 or bfloat16; for each sample what it was when the list was compiled, but that
  // 0 x 0 has become its size. Throws Error{unsupported} for an image that it cannot work on.
  virtual ImageSpec schema(const ImageSpec& in) const { return in; }
  // Whether it calls for random numbers. A Loader runs the operations that it is given in evaluation, too; what is
  // derived for it from data.transforms leaves such ones out.
  virtual bool draws() const noexcept { return false; }
  // What it will do to an image of this size. `random` is the operation's own and the sample's. Never called unless
  // draws() is overridden with it to say so.
  virtual Drawn draw(SampleRandom& /*random*/, const Geometry& /*in*/) const { return {}; }
  // The most samples that it reads beside one, at most kPartnersMax. Of a list one operation may.
  virtual std::size_t partners_max() const noexcept { return 0; }
  // Their positions in the epoch, into `positions`, which has room for partners_max(); returns how many. They are read
  // and pass the operations before this one, with draws of their own. A sample is as corrupt as any of them: with
  // data.on_corrupt = "replace" they must follow from `drawn` or `own`, which differ with each try, or every sample in
  // its place meets the same corrupt one, and the epoch ends.
  virtual std::size_t partners(const Drawn& /*drawn*/, const EpochPlace& /*own*/,
                               std::span<std::int64_t> /*positions*/) const {
    return 0;
  }
  // Over samples: writes every row of out.image, and those of the fields that it changes. What it throws names the
  // operation and the sample. Error{corrupt_data}, {unsupported}, {io} and {not_found} are the sample's, for
  // data.on_corrupt; anything else ends the epoch.
  virtual void apply(const OperationInput& in, const Drawn& drawn, OperationOutput& out) const;
  // Over the batch: called once, by the thread that made the last sample of it. `random` goes by the batch's place in
  // the epoch. What it throws ends the epoch.
  virtual void apply_batch(const BatchView& batch, SampleRandom& random) const;
  virtual std::int64_t batch_min() const noexcept { return 1; }  // Samples of a batch, at least.
  // What the one pass of this library can do in its place. Null: it always runs by itself.
  virtual const transform::Fusion* fusion() const noexcept { return nullptr; }
};

// Those of options/transforms.inc. Error{invalid_argument} names operation and parameter: a value out of range, or one
// that no kernel has.
#define HEADRACE_OPERATION(Name) std::unique_ptr<const Operation> make_operation(const transforms::Name& parameters);
#include <headrace/options/transforms.inc>
#undef HEADRACE_OPERATION
std::unique_ptr<const Operation> make_operation(const TransformSpec& spec);
// All of them, for Operation::parameters().
std::vector<OperationParameter> parameters_of(TransformSpec spec);

}  // namespace headrace
