// One field of one sample: what it is, or where it lies.
#pragma once

#include <headrace/field.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <type_traits>

namespace headrace {

enum class ImageForm : std::uint8_t {
  pixels = 0,   // uint8, rows top to bottom, channels interleaved (HWC), without padding.
  encoded = 1,  // A whole JPEG or PNG file.
};

// A plain value that points into memory of others: valid as long as its Source and what it was read into. Name, type
// and fixed axes are the FieldSpec's; a Loader checks that every payload agrees with its field before it goes into a
// batch, so nothing here fails. What its kind does not use may be anything.
struct Payload {
  enum class Kind : std::uint8_t {
    absent = 0,  // The sample lacks the field, which must be optional.
    value = 1,   // A number, held here: a label needs no memory to lie in.
    bytes = 2,
    range = 3,   // `size` bytes from `offset` on of what the source's store has under `key`, to be fetched. What they
                 // will be, form, rank and extents tell as of `bytes`.
    frames = 4,  // Frames `offset`, `offset` + `step`, ..., `size` of them, of the video `key`.
  };

  Kind kind = Kind::absent;
  ImageForm form = ImageForm::pixels;  // Of an image.
  std::uint8_t rank = 0;               // Axes of an array, at most 255; above kRankMax not all are in `extents`.
  std::uint8_t value_bytes = 0;        // Of a number: its type has as many.
  std::int32_t step = 0;
  std::array<std::int64_t, kRankMax> extents{};  // Elements along each axis; of an encoded image none.
  std::array<std::byte, 8> value{};
  std::span<const std::uint8_t> bytes{};
  // Of an encoded JPEG, as codec::serialise wrote it; empty: none came with it. It is checked before it is used.
  std::span<const std::uint8_t> entropy_index{};
  const char* key = "";  // Ends in NUL, as a Store wants it. Valid as long as the source.
  std::int64_t offset = 0;
  std::int64_t size = 0;

  // In place, what the kind uses and nothing else: a source does it for every sample, and whole payloads are 128 bytes
  // to make and as many to copy. Elements in C order.
  void set_bytes(std::span<const std::uint8_t> elements, std::span<const std::int64_t> axes) noexcept {
    set_data(ImageForm::pixels, elements, {});
    rank = static_cast<std::uint8_t>(std::min<std::size_t>(axes.size(), 255));
    std::copy_n(axes.begin(), std::min(axes.size(), kRankMax), extents.begin());
  }
  // An image's.
  void set_pixels(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                  std::int64_t channels) noexcept {
    set_data(ImageForm::pixels, pixels, {});
    rank = 3;
    extents[0] = height, extents[1] = width, extents[2] = channels;
  }
  void set_file(std::span<const std::uint8_t> file, std::span<const std::uint8_t> index_of_it = {}) noexcept {
    set_data(ImageForm::encoded, file, index_of_it);
    rank = 0;
    extents = {};
  }
  // What lies there is fetched into the field's buffer before anybody looks at it: elements of these axes, or a file.
  void set_range(const char* its_key, std::int64_t from, std::int64_t its_size,
                 std::span<const std::int64_t> axes) noexcept {
    set_bytes({}, axes);
    kind = Kind::range;
    key = its_key, offset = from, size = its_size;
  }
  void set_file_range(const char* its_key, std::int64_t from, std::int64_t its_size) noexcept {
    set_file({});
    kind = Kind::range;
    key = its_key, offset = from, size = its_size;
  }
  // Of exactly the field's type: std::int64_t for int64, the bits as std::uint16_t for bfloat16 and float16.
  template <class Number>
  requires(std::is_arithmetic_v<Number>) void set_number(Number number) noexcept {
    static_assert(sizeof(Number) <= 8);
    kind = Kind::value;
    rank = 0;
    value_bytes = sizeof(Number);
    std::memcpy(value.data(), &number, sizeof number);
  }

  static Payload of_bytes(std::span<const std::uint8_t> elements, std::span<const std::int64_t> axes) noexcept {
    Payload payload;
    payload.set_bytes(elements, axes);
    return payload;
  }
  static Payload of_bytes(std::span<const std::uint8_t> elements, std::initializer_list<std::int64_t> axes) noexcept {
    return of_bytes(elements, std::span{axes.begin(), axes.size()});
  }
  static Payload of_pixels(std::span<const std::uint8_t> pixels, std::int64_t height, std::int64_t width,
                           std::int64_t channels) noexcept {
    Payload payload;
    payload.set_pixels(pixels, height, width, channels);
    return payload;
  }
  static Payload of_file(std::span<const std::uint8_t> file, std::span<const std::uint8_t> index_of_it = {}) noexcept {
    Payload payload;
    payload.set_file(file, index_of_it);
    return payload;
  }
  template <class Number>
  requires(std::is_arithmetic_v<Number>) static Payload of_number(Number number) noexcept {
    Payload payload;
    payload.set_number(number);
    return payload;
  }
  static Payload of_range(const char* key, std::int64_t offset, std::int64_t size,
                          std::initializer_list<std::int64_t> axes) noexcept {
    Payload payload;
    payload.set_range(key, offset, size, std::span{axes.begin(), axes.size()});
    return payload;
  }
  static Payload of_frames(const char* key, std::int64_t first, std::int64_t count, std::int32_t step) noexcept {
    return {.kind = Kind::frames, .step = step, .key = key, .offset = first, .size = count};
  }

  // Of a number that agrees with its field, be it a value or the bytes of one.
  template <class Number>
  requires(std::is_arithmetic_v<Number>) Number number()
  const noexcept {
    static_assert(sizeof(Number) <= 8);
    Number number{};
    const void* const at = kind == Kind::bytes ? static_cast<const void*>(bytes.data()) : value.data();
    std::memcpy(&number, at, sizeof number);
    return number;
  }
  // Those that `extents` has.
  std::span<const std::int64_t> shape() const noexcept {
    return std::span{extents}.first(std::min<std::size_t>(rank, kRankMax));
  }
  // Of an image of pixels that agrees with its field.
  int height() const noexcept { return static_cast<int>(extents[0]); }
  int width() const noexcept { return static_cast<int>(extents[1]); }
  int channels() const noexcept { return static_cast<int>(extents[2]); }

 private:
  void set_data(ImageForm its_form, std::span<const std::uint8_t> its_bytes,
                std::span<const std::uint8_t> its_index) noexcept {
    kind = Kind::bytes;
    form = its_form;
    bytes = its_bytes;
    entropy_index = its_index;
  }
};

// A sample's are looked at one behind the other for every sample.
static_assert(std::is_trivially_copyable_v<Payload> && sizeof(Payload) <= 128);

}  // namespace headrace
