// Any bytes as the description of a sample's fields: refused, or a schema that gives the same bytes. The first byte
// says whether the number of bytes in the head is made right first, as a hostile writer would. An empty folder of
// inputs is first filled with small schemas.
//   build/fuzz/bin/schema_fuzz -max_total_time=600 FOLDER
#include <headrace/error.h>
#include <headrace/field.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/base/fuzz_inputs.h"

namespace {

using namespace headrace;

void write_schema(const std::filesystem::path& path, const Schema& schema) {
  const auto bytes = schema_bytes(schema);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  write_input(path, '\0' + text);
  write_input(path.string() + "-mended", '\1' + text);
}

void fill(const std::filesystem::path& folder) {
  write_schema(folder / "pair", Schema::image_and_labels(0, 0, 3));
  write_schema(folder / "none", Schema{});
  write_schema(folder / "many", Schema{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}, .optional = true},
                                        {.name = "mask", .dtype = DType::boolean, .shape = {8, 8}},
                                        {.name = "c", .shape = {kRagged}, .encoding = Encoding::text},
                                        {.name = "clip", .dtype = DType::f16, .shape = {1, 2, 3, 4, kRagged, 0}}}});
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto given = std::as_bytes(std::span{data + 1, size - 1});
  std::vector<std::byte> bytes(given.begin(), given.end());
  if (data[0] % 2 != 0 && bytes.size() >= 16) {
    const auto whole = static_cast<std::uint32_t>(bytes.size());
    std::memcpy(&bytes[12], &whole, sizeof whole);
  }
  try {
    const Schema schema = schema_of(bytes, "fuzz");
    if (schema_bytes(schema) != bytes) std::abort();
    if (Schema{{schema.fields().begin(), schema.fields().end()}} != schema) std::abort();
    for (const FieldSpec& field : schema.fields()) {
      if (schema.text().find(array_text(field.dtype, field.shape)) == std::string::npos) std::abort();
      if (field.bytes().value_or(0) < 0) std::abort();
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::corrupt_data && error.code() != ErrorCode::unsupported) std::abort();
  }
  return 0;
}
