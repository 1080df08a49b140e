// Any bytes as a pack, to read and to go on with. The first byte says which, and whether the checksums are made right
// first, as a hostile writer would. An empty folder of inputs is first filled with a small pack.
//   build/fuzz/bin/pack_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "core/base/files.h"
#include "core/base/fuzz_inputs.h"
#include "data/store/mended_pack.h"
#include "data/store/pack_file.h"
#include "data/store/pack_writer.h"
#include "data/store/row_blocks.h"

namespace {

using namespace headrace;

void fill(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "whole";
  PackFileWriter writer{path, 5, {"a", "b"}, PackFileWriter::Mode::fresh};
  for (int i = 0; i < 3; ++i) {
    writer.add({}, "a/" + std::to_string(i), std::vector<std::uint8_t>(static_cast<std::size_t>(i * 9), 3),
               std::vector<std::uint8_t>{7});
  }
  for (const BlockForm form : {BlockForm::raw, BlockForm::lz4}) {
    PackRow row{};
    row.height = 37, row.width = 5, row.channels = 3, row.form = static_cast<std::uint8_t>(form);
    const std::vector<std::uint8_t> pixels(37 * 5 * 3, 100);
    RowBlockWriter blocks;
    blocks.make(pixels, row, 0);
    writer.add(row, "b/" + std::to_string(row.form), blocks.bytes(), blocks.index());
  }
  writer.commit();
  const std::string content = read_file(path, 1 << 20);
  for (const char kind : {'\0', '\1', '\2'}) {
    write_input(folder / ("kind" + std::to_string(int{kind})), kind + content);
  }
  std::filesystem::remove(path);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::filesystem::path path = fuzz_folder() / "fuzzed.pack";
  if (size == 0) return 0;
  std::string content(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 3 == 1) mend_pack(content);
  try {
    if (data[0] % 3 == 2) {
      write_input(partial_pack(path), content);
      PackFileWriter writer{path, 5, {"a", "b"}, PackFileWriter::Mode::append};
      writer.add({}, "more", std::vector<std::uint8_t>{1}, {});
      writer.commit();
    } else {
      write_input(path, content);
    }
    const PackFile pack{path};
    std::vector<std::uint8_t> buffer;
    for (std::size_t i = 0; i < pack.rows().size(); ++i) {
      const PackRow& row = pack.rows()[i];
      try {
        pack.read(i, buffer);
        if (!has_sound_blocks(row)) continue;
        pack.read_rows(i, row.height / 2, 1, buffer);
        pack.read_rows(i, 0, row.height, buffer);
      } catch (const Error&) {
        const bool mended = has_blocks(row);            // The checksums of its blocks may be anybody's.
        if (data[0] % 3 == 2 && !mended) std::abort();  // What a writer kept or wrote is whole.
      }
    }
  } catch (const Error&) {
  }
  std::filesystem::remove(path);
  std::filesystem::remove(partial_pack(path));
  return 0;
}
