// The Huffman-coded data of a baseline JPEG (ITU-T T.81, F.2.2) to dequantised coefficients, forwards, unit by unit.
//
// Whatever is not as an encoder writes it makes the decoder fail: bad codes, coefficients that no image has, data
// that ends early, restart markers that are missing. It then goes on reading zeros, and ok() tells.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "media/codec/detail/baseline_header.h"
#include "media/codec/detail/huffman.h"
#include "media/codec/entropy_index.h"

namespace headrace::codec::detail {

// A row of blocks of one component that is to be filled.
struct BlockRow {
  std::int16_t* coefficients = nullptr;  // All 0, as jpeg_passes::Kernels wants them; null: nobody wants the row.
  std::uint8_t* varied = nullptr;        // Per group of blocks: whether any has more than a mean.
};

class EntropyDecoder {
 public:
  // Reads from the first unit. False: a table is none. `bytes` and `header` must live while units are decoded.
  bool begin(std::span<const std::uint8_t> bytes, const BaselineHeader& header, int together);

  // The next `count` units, into rows[component][row in the unit]; their block columns count from 0.
  void decode(int count, const std::array<std::array<BlockRow, 2>, 3>& rows);
  void skip(int count);
  bool ok() const noexcept { return !failed_ && source_.count >= source_.missing; }

  EntropyPosition position() const noexcept;
  // To before unit `unit`. Any position is safe; a wrong one gives a wrong image or failure.
  void move_to(const EntropyPosition& position, std::int64_t unit);

 private:
  // Bits not yet used, from the highest down. `count` of them are valid; those below are the file's next ones or 0.
  struct Source {
    std::uint64_t bits = 0;
    std::int64_t count = 0;
    const std::uint8_t* at = nullptr;
    const std::uint8_t* end = nullptr;
    std::int64_t missing = 0;  // Of the valid bits those that were made up, behind a marker.
  };
  // Where a component's coefficients go, in zigzag order. Behind the 64th is where bad codes lead.
  struct Place {
    std::array<std::uint16_t, 80> factors{};
    std::array<std::uint16_t, 80> positions{};  // Within a group's coefficients.
  };
  static constexpr int kEnd = -1, kBad = -2;
  struct Coefficient;
  struct Block {
    std::uint32_t extremes;
    bool varied, failed;
  };

  static Source refilled(Source source);
  static Source refilled_slowly(Source source);
  static int read_difference(Source& source, const DcTable& table, bool& failed);
  static Coefficient read_rest(Source& source, const AcTable& table, std::uint32_t step);
  static Block read_block(Source& source, const AcTable& table, const Place& place, std::int16_t* coefficients);
  static bool skip_block(Source& source, const AcTable& table);

  template <class Unit>
  void for_units(int count, Unit unit);
  template <std::size_t kComponents>
  void decode_units(int count, const std::array<std::array<BlockRow, 2>, 3>& rows);
  bool restart();
  void make_leaps();

  const BaselineHeader* header_ = nullptr;
  std::span<const std::uint8_t> bytes_;
  Source source_;
  std::array<int, 3> means_{};  // Of the last block of each component, quantised.
  std::int64_t unit_ = 0;
  std::int64_t until_restart_ = 0;  // 0: a marker is due.
  bool failed_ = false;
  int together_ = 1;
  std::array<Place, 3> places_;
  std::array<DcTable, 4> dc_;
  std::array<AcTable, 4> ac_;
};

}  // namespace headrace::codec::detail
