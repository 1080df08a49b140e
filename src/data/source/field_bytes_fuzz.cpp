// Any bytes as the description of a sample's fields and, behind it, the fields: refused, or payloads that give the same
// bytes. The first byte says whether the image is left out. An empty folder of inputs is first filled with small
// samples.
//   build/fuzz/bin/field_bytes_fuzz -max_total_time=600 FOLDER
#include "data/source/field_bytes.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/fuzz_inputs.h"

namespace {

using namespace headrace;

constexpr std::uint8_t kBytes[64] = {1, 0, 1, 1};

void write_sample(const std::filesystem::path& path, const Schema& schema, const std::vector<Payload>& payloads) {
  for (const char kind : {'\0', '\1'}) {
    const FieldBytes format{schema, kind == 1 ? schema.image() : std::nullopt};
    std::vector<std::byte> bytes = schema_bytes(schema);
    const auto front = std::ssize(bytes);
    bytes.resize(bytes.size() + static_cast<std::size_t>(format.size(payloads)));
    format.write(payloads, std::span{bytes}.subspan(static_cast<std::size_t>(front)));
    write_input(path.string() + std::to_string(int{kind}),
                kind + std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
}

void fill(const std::filesystem::path& folder) {
  const std::span<const std::uint8_t> bytes{kBytes};
  write_sample(folder / "pixels", Schema::image_and_labels(0, 0, 3),
               {Payload::of_pixels(bytes.first(36), 3, 4, 3), Payload::of_number(std::int64_t{7})});
  write_sample(folder / "file", Schema::image_and_labels(0, 0, 3),
               {Payload::of_file(bytes.first(13), bytes.first(9)), Payload::of_number(std::int64_t{7})});
  const Schema many{{{.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}, .optional = true},
                     {.name = "mask", .dtype = DType::boolean, .shape = {2, 2}},
                     {.name = "c", .shape = {kRagged}, .encoding = Encoding::text},
                     {.name = "h", .dtype = DType::i16}}};
  write_sample(folder / "boxes", many,
               {Payload::of_bytes(bytes.first(48), {3, 4}), Payload::of_bytes(bytes.first(4), {2, 2}),
                Payload::of_bytes(bytes.first(5), {5}), Payload::of_number(std::int16_t{-2})});
  write_sample(folder / "absent", many,
               {Payload{}, Payload::of_bytes(bytes.first(4), {2, 2}), Payload::of_bytes({}, {0}),
                Payload::of_number(std::int16_t{3})});
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::uint32_t front = 0;
  if (size < 17) return 0;
  std::memcpy(&front, data + 1 + 12, sizeof front);
  if (front > size - 1) return 0;
  Schema schema;
  try {
    schema = schema_of(std::as_bytes(std::span{data + 1, front}), "fuzz");
  } catch (const Error&) {
    return 0;
  }
  const std::vector<std::uint8_t> copy(data + 1 + front, data + size);  // Of exactly its size, for the sanitizer.
  const auto bytes = std::as_bytes(std::span{copy});
  const FieldBytes format{schema, data[0] % 2 == 1 ? schema.image() : std::nullopt};
  std::vector<Payload> payloads(schema.size());
  if (format.read(bytes, {.pixels = 1 << 20, .bytes = 1 << 16}, payloads)) return 0;
  std::vector<std::byte> again(static_cast<std::size_t>(format.size(payloads)));
  format.write(payloads, again);
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
  return 0;
}
