// Any bytes as a worker's first message and the front of its slot: refused, or facts that its source may have. The
// first byte says whether the format is made right first, as a hostile worker would. An empty folder of inputs is first
// filled with small ones.
//   build/fuzz/bin/worker_facts_fuzz -max_total_time=600 FOLDER
#include "data/source/worker_facts.h"

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/base/fuzz_inputs.h"
#include "data/source/worker_protocol.h"

namespace {

using namespace headrace;

constexpr std::size_t kHead = 1 + ControlMessage::kSize;

void write_message(const std::filesystem::path& path, const Schema& schema, std::int64_t size,
                   const std::vector<std::int64_t>& labels, const std::string& form) {
  const auto fields = schema_bytes(schema);
  const std::array<std::int64_t, 8> message{worker::ready,      worker::kFormat,  size, 3, std::ssize(fields),
                                            std::ssize(labels), std::ssize(form), 0};
  std::string text(1, '\0');
  text.append(reinterpret_cast<const char*>(message.data()), sizeof message);
  text.append(reinterpret_cast<const char*>(fields.data()), fields.size());
  text.append(reinterpret_cast<const char*>(labels.data()), labels.size() * sizeof(std::int64_t));
  write_input(path, text + form);
}

void fill(const std::filesystem::path& folder) {
  const Schema pair = Schema::image_and_labels(4, 5, 3);
  write_message(folder / "labels", pair, 4, {0, 1, 2, 1}, "");
  write_message(folder / "form", Schema::image_and_labels(0, 0, 1), 2, {}, R"({"tuple": 2})");
  write_message(folder / "unknown", pair, kUnknownSize, {}, "");
  write_message(folder / "torn", pair, 3, {0, 1}, "");
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  return headrace::fill_inputs(*argc, *argv, fill);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kHead) return 0;
  ControlMessage message;
  std::memcpy(&message.kind, data + 1, sizeof message.kind);
  std::memcpy(message.numbers.data(), data + 1 + sizeof(std::int64_t), sizeof message.numbers);
  if (data[0] % 2 != 0) message.kind = worker::ready, message.numbers[0] = worker::kFormat;
  const std::vector<std::uint8_t> slot(data + kHead, data + size);  // Of exactly its size, for the sanitizer.
  try {
    const SourceFacts facts =
        facts_told(message, std::as_bytes(std::span{slot}), {"fuzz.Source", "worker 0"}, message.numbers[6] % 2 != 0);
    check(facts);
    const bool told = facts.labels.empty() || std::ssize(facts.labels) == facts.size;
    if (!told || facts.size < 0 || (facts.schema.empty() && facts.size > 0)) std::abort();
    if (info_of(facts).schema != facts.schema) std::abort();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::internal && error.code() != ErrorCode::invalid_argument) std::abort();
  }
  return 0;
}
