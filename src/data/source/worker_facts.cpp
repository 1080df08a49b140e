#include "data/source/worker_facts.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/base/fail.h"
#include "data/source/worker_protocol.h"

namespace headrace {
namespace {

Schema schema_told(std::span<const std::byte> bytes, const WorkerNames& names, bool sizes_vary) {
  try {
    const Schema told = schema_of(bytes, names.worker);
    return sizes_vary ? with_any_size(told) : told;
  } catch (const Error& error) {  // Its code could be one that data.on_corrupt takes for the sample's.
    fail(ErrorCode::internal, "data: {}: {}", names.source, error.what());
  }
}

}  // namespace

SourceFacts facts_told(const ControlMessage& ready, std::span<const std::byte> slot, const WorkerNames& names,
                       bool sizes_vary) {
  const auto& [format, size, classes, schema, labels, form, zero] = ready.numbers;
  if (ready.kind != worker::ready || format != worker::kFormat) {
    fail(ErrorCode::internal,
         "data: {}: {} speaks format {} of the protocol, in a message of kind {}; wanted {} and {}", names.source,
         names.worker, format, ready.kind, worker::kFormat, static_cast<std::uint32_t>(worker::ready));
  }
  constexpr auto kLabelBytes = static_cast<std::int64_t>(sizeof(std::int64_t));
  const std::int64_t room = std::ssize(slot);
  const bool schema_fits = schema >= 0 && schema <= std::min<std::int64_t>(room, kSchemaBytesMax);
  const bool labels_fit =
      schema_fits && schema % kLabelBytes == 0 && labels >= 0 && labels <= (room - schema) / kLabelBytes;
  if (!labels_fit || form < 0 || form > room - schema - labels * kLabelBytes) {
    fail(ErrorCode::internal, "data: {}: {} tells fields in {} bytes, {} labels and a form in {} bytes", names.source,
         names.worker, schema, labels, form);
  }
  static_assert(std::endian::native == std::endian::little, "labels lie in the slot as they do in memory");
  const auto shared = slot.first(static_cast<std::size_t>(schema + labels * kLabelBytes + form));
  const std::vector<std::byte> told(shared.begin(), shared.end());
  const auto fields = std::span{told}.first(static_cast<std::size_t>(schema)),
             rest = std::span{told}.subspan(fields.size(), static_cast<std::size_t>(labels * kLabelBytes)),
             last = std::span{told}.subspan(fields.size() + rest.size());
  SourceFacts facts{.name = names.source,
                    .size = size,
                    .classes = classes == worker::kUnknown ? kUnknownClasses : classes,
                    .schema = schema_told(fields, names, sizes_vary),
                    .labels = std::vector<std::int64_t>(static_cast<std::size_t>(labels)),
                    .form = std::string(reinterpret_cast<const char*>(last.data()), last.size())};
  if (!rest.empty()) std::memcpy(facts.labels.data(), rest.data(), rest.size());
  if (size == kUnknownSize) {
    fail(ErrorCode::invalid_argument, "data: {}: {} does not know how many samples it has, and processes read by index",
         names.source, names.worker);
  }
  check(facts);
  return facts;
}

}  // namespace headrace
