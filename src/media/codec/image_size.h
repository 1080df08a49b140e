// How large an image is, told by the first bytes of its file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::codec {

struct HeaderSize {
  int height = 0;
  int width = 0;
  // Bytes from the file's front that may tell, more than were given; 0: what is said is final. A file that has no more
  // tells no size.
  std::size_t wanted = 0;
};

// Of a JPEG or PNG file that begins with `front`; decodes nothing and takes no memory. 0 x 0 and nothing wanted: it is
// neither, or its header tells no size. Where Decoder::open() takes the whole file, the sizes are the same; what it
// refuses may have one here.
HeaderSize header_size(std::span<const std::uint8_t> front) noexcept;

}  // namespace headrace::codec
