// Images as a network wants them, by a list of operations compiled into as few passes as possible: what a Loader does
// with the images of its samples, without one.
#pragma once

#include <headrace/field.h>
#include <headrace/operation.h>
#include <headrace/options/transform.h>
#include <headrace/options/transforms.h>
#include <headrace/payload.h>
#include <headrace/sample.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// Operations that run one behind the other.
struct TransformStep {
  std::vector<std::string> operations;
  bool fused = false;  // In one pass.
  std::string why;     // What kept them from one pass with those before; empty: nothing did.
};

// What the draws for a sample depend on.
struct SampleKey {
  std::uint64_t seed = 0;
  std::int64_t epoch = 0;
  std::int64_t index = 0;
};

// Several threads may apply one at once; each takes memory of its own for it, of which 64 MiB at most stay for the next
// call, without what decoder and resizer keep.
class Transform {
 public:
  // `in`: of the samples. Error{invalid_argument} names the operation: a parameter that no kernel has, pixels wanted
  // after Normalize, a size that is not fixed at the end of the list; a schema without an image.
  Transform(Schema in, const std::vector<TransformSpec>& operations, PixelLayout layout = PixelLayout::nchw);
  Transform(Schema in, std::vector<std::shared_ptr<const Operation>> operations,
            PixelLayout layout = PixelLayout::nchw);
  // What evaluation makes of an image in the run of `headrace train` or `tune` whose folder this is: the same bytes, by
  // its eval_transform.toml. Error names that file and its line or key: not_found; unsupported, of another format;
  // corrupt_data, cut off; invalid_argument, a key that is missing or unknown, an operation that there is not.
  static Transform from_run(const std::filesystem::path& run);
  ~Transform();
  Transform(Transform&&) noexcept;
  Transform& operator=(Transform&&) noexcept;

  // Of an image that comes out.
  Geometry size() const noexcept;
  DType dtype() const noexcept;
  PixelLayout layout() const noexcept;
  std::size_t image_bytes() const noexcept;

  // Of a whole JPEG or PNG file. `image`: image_bytes() of them, channel by channel or pixel by pixel as the layout
  // says. Error{invalid_argument}: the list draws at random, or another number of bytes; {corrupt_data} and
  // {unsupported}: the file cannot be decoded.
  void apply(std::span<const std::uint8_t> file, std::span<std::byte> image) const;
  // Of a sample that has its image alone, file or pixels; likewise.
  void apply(const Payload& stored, std::span<std::byte> image) const;
  // With the draws that a Loader has for it: the same bytes.
  void apply(const Payload& stored, const SampleKey& key, std::span<std::byte> image) const;
  // Of a sample's image, file or pixels, with the draws that a Loader has for it: the same bytes. `out`: the other
  // fields, those that operations change in its own memory, the rest where they lie in `in`. Error{corrupt_data} and
  // {unsupported} name a field that an operation reads and that is not what its schema says.
  void apply(const Sample& in, const SampleKey& key, Sample& out, std::span<std::byte> image) const;
  void apply(const Sample& in, const SampleKey& key, std::span<std::byte> image) const;  // Of the image alone.

  std::vector<TransformStep> explain() const;

 private:
  struct Impl;
  explicit Transform(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
