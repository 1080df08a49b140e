// Pixels to a PNG file, without loss.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headrace::codec {

// pixels: height x width x channels, HWC uint8, of 1 or 3 channels. Returns the whole file. Costs as much as zlib at
// its fastest. Error{unsupported}: another number of channels; Error{out_of_memory}.
std::vector<std::uint8_t> png_of(std::span<const std::uint8_t> pixels, int height, int width, int channels);

}  // namespace headrace::codec
