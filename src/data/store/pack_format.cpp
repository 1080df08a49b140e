#include "data/store/pack_format.h"

namespace headrace {

std::vector<std::byte> pack_front(PackHead head, const Schema& schema) {
  std::vector<std::byte> front;
  const auto add = [&front](std::span<const std::byte> bytes) {
    front.insert(front.end(), bytes.begin(), bytes.end());
  };
  head.format = schema.empty() ? kPackFormat : kPackFieldsFormat;
  kPackMagic.copy(head.magic, sizeof head.magic);
  head.check = check_of(head);
  add(std::as_bytes(std::span{&head, 1}));
  if (schema.empty()) return front;
  const std::vector<std::byte> fields = schema_bytes(schema);
  const PackFieldsHead before{static_cast<std::uint32_t>(fields.size()), 0};
  const std::uint64_t check = xxh3(fields);
  add(std::as_bytes(std::span{&before, 1}));
  add(fields);
  add(std::as_bytes(std::span{&check, 1}));
  return front;
}

}  // namespace headrace
