// From a JPEG's coefficients to pixels, once per instruction set. Those of the plain set are the specification, and it
// is libjpeg-turbo's default arithmetic, bit for bit, in 16-bit sums where that keeps 16 bits.
//
// Sources: ITU-T T.81 (the transform), C. Loeffler, A. Ligtenberg and G. Moschytz, "Practical fast 1-D DCT algorithms
// with 11 multiplications", 1989 (its evaluation), ITU-T T.871 (the colours), and libjpeg-turbo, whose algorithms,
// constants and roundings each kernel below names. Its licences: NOTICE. Kernels allocate nothing and start no thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::codec::jpeg_passes {

// Bytes behind the last one wanted that kernels may read and write, in every row but those of `rgb`'s output.
constexpr std::ptrdiff_t kPadding = 64;
constexpr int kTogetherMax = 4;

struct Kernels {
  // Blocks that lie beside each other and are transformed at once: 1, 2 or 4. Their coefficients lie by rows,
  // coefficients[(row * together + block) * 8 + column].
  int together;
  // The inverse transform of that many blocks, dequantised, to 8 rows of together * 8 bytes; leaves zeros in place of
  // the coefficients. Loeffler, Ligtenberg and Moschytz in 13-bit fixed point, after libjpeg-turbo's jidctint.c, with
  // the sums of 16 bits of its SIMD form.
  void (*inverse_transform)(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept;
  // The same to the means of each 2 x 2 and 4 x 4 of those samples: 4 rows of together * 4 bytes, 2 of together * 2.
  // After libjpeg-turbo's jidctred.c, from which the factors come.
  void (*inverse_transform_to_4)(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept;
  void (*inverse_transform_to_2)(std::int16_t* coefficients, std::uint8_t* out, std::ptrdiff_t stride) noexcept;

  // Twice as many columns, 3/4 of the nearer sample and 1/4 of the other neighbour: in[-1] to in[count] to 2 * count
  // bytes. These three are the "fancy upsampling" of libjpeg-turbo's jdsample.c, with its alternating roundings.
  void (*widen)(const std::uint8_t* in, std::ptrdiff_t count, std::uint8_t* out) noexcept;
  // The same in both directions: `near` is the row of samples nearer to the row that is made. `sums` is scratch for
  // count + 2 and kPadding.
  void (*widen_between)(const std::uint8_t* near, const std::uint8_t* far, std::ptrdiff_t count, std::uint16_t* sums,
                        std::uint8_t* out) noexcept;
  // A row between two, no wider: (3 near + far + bias) / 4.
  void (*blend)(const std::uint8_t* near, const std::uint8_t* far, int bias, std::ptrdiff_t count,
                std::uint8_t* out) noexcept;
  // YCbCr to RGB, T.871's factors in 16-bit fixed point with the roundings of libjpeg-turbo's jdcolor.c. 3 * count
  // bytes and none behind them.
  void (*rgb)(const std::uint8_t* luma, const std::uint8_t* blue, const std::uint8_t* red, std::ptrdiff_t count,
              std::uint8_t* out) noexcept;
};

// Of the best instruction set that this machine has, or of the one that core/base/kernel_sets.h names.
const Kernels& kernels() noexcept;

}  // namespace headrace::codec::jpeg_passes
