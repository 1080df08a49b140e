// Rectangles of pixels from one image into another, for operations that move pixels and compute nothing.
#pragma once

#include <headrace/operation.h>

namespace headrace::transform {

// The target's pixel (i, j) becomes the image's (y + i, x + j); beside the image it is 0. Both are of one type and as
// many channels.
void copy_rectangle(const ImageView& from, int y, int x, const ImageTarget& to) noexcept;

// Each row from right to left; of one size.
void copy_mirrored(const ImageView& from, const ImageTarget& to) noexcept;

}  // namespace headrace::transform
