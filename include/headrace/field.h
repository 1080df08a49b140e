// What a sample is made of: named fields, each of one type of element and, but for ragged axes, of one shape.
#pragma once

#include <headrace/dtype.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

inline constexpr std::size_t kFieldsMax = 256;             // Of a schema.
inline constexpr std::size_t kRankMax = 6;                 // Axes of a sample's field, without the batch's.
inline constexpr std::size_t kFieldNameBytesMax = 255;     // Of a field's name.
inline constexpr std::int64_t kRagged = -1;                // In a Shape: this axis differs from sample to sample.
inline constexpr std::int64_t kExtentMax = 2'147'483'647;  // Elements along one axis.

enum class Encoding : std::uint8_t {
  raw = 0,    // Elements in C order.
  image = 1,  // An image: uint8 (height, width, channels), as pixels or as a whole JPEG or PNG file.
  text = 2,   // UTF-8: uint8 (-1).
};

struct FieldSpec {
  std::string name;
  DType dtype = DType::u8;
  Shape shape{};  // Of one sample; {}: a number. kRagged along axes that differ.
  Encoding encoding = Encoding::raw;
  bool optional = false;  // A sample may lack it.

  bool is_ragged() const noexcept;                     // Along some axis.
  std::optional<std::int64_t> bytes() const noexcept;  // Of a sample. nullopt: ragged, or more than an int64 holds.
  friend bool operator==(const FieldSpec&, const FieldSpec&) = default;
};

// "float32 (-1, 4)".
std::string array_text(DType dtype, std::span<const std::int64_t> shape);

// The fields of a sample in their order. Never changes once made; copies share it and cost nothing, from any thread.
// A name is looked up while something is built, never for a sample: from then on fields go by position.
class Schema {
 public:
  Schema() = default;
  // Error{invalid_argument}: more than kFieldsMax fields, or two of one name; a name that is empty, too long, not
  // UTF-8, has control characters, or is "valid", which every batch has; more than kRankMax axes; an axis below -1 or
  // above kExtentMax; an image other than uint8 (height, width, 1 to 4), of no pixels; a text other than uint8 (-1).
  explicit Schema(std::vector<FieldSpec> fields);
  // "image" and "labels", an int64: what IDX, folders, lists and packs of these hold. 0 x 0: each image has a size
  // of its own.
  static Schema image_and_labels(int height, int width, int channels);

  std::size_t size() const noexcept { return fields().size(); }
  bool empty() const noexcept { return size() == 0; }
  const FieldSpec& operator[](std::size_t position) const { return fields()[position]; }  // Not checked.
  std::span<const FieldSpec> fields() const noexcept;
  std::optional<std::size_t> find(std::string_view name) const noexcept;
  // Error{invalid_argument} names the nearest, and all there are.
  std::size_t position(std::string_view name) const;
  std::optional<std::size_t> image() const noexcept;  // The first field that is an image.
  bool is_image_and_labels() const noexcept;          // As image_and_labels() makes it, whatever the size.
  // Of "labels", where it is an int64 that every sample has: the sample's class.
  std::optional<std::size_t> class_label() const noexcept;
  // "image uint8 (-1, -1, 3) image; labels int64 ()": one line for messages and states. Two schemas that differ have
  // two texts.
  std::string text() const;
  friend bool operator==(const Schema& a, const Schema& b) noexcept;

 private:
  std::shared_ptr<const std::vector<FieldSpec>> fields_;  // Owners: all copies. Null: no fields.
};

// As packs and the wire to worker processes hold it: at most kSchemaBytesMax, a multiple of 8.
inline constexpr std::size_t kSchemaBytesMax = 16 + kFieldsMax * (8 + 8 * kRankMax + kFieldNameBytesMax + 1);
std::vector<std::byte> schema_bytes(const Schema& schema);
// Error{corrupt_data} begins with `what`; Error{unsupported}: of a later format. Only what schema_bytes() gives is
// read.
Schema schema_of(std::span<const std::byte> bytes, std::string_view what);

}  // namespace headrace
