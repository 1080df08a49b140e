// What tests and fuzzers share: damage to a pack that its checksums do not tell.
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "data/store/pack_format.h"

namespace headrace {

// Makes the checksums of head, table and trailer right, wherever the trailer says that the table is.
inline void mend_pack(std::string& file) {
  if (file.size() < sizeof(PackHead) + sizeof(PackTrailer)) return;
  PackHead head;
  std::memcpy(&head, file.data(), sizeof head);
  head.check = check_of(head);
  std::memcpy(file.data(), &head, sizeof head);
  const std::size_t end = file.size() - sizeof(PackTrailer);
  PackTrailer trailer;
  std::memcpy(&trailer, file.data() + end, sizeof trailer);
  if (trailer.table_at <= end) {
    trailer.table_hash = xxh3(std::as_bytes(std::span{file}.subspan(trailer.table_at, end - trailer.table_at)));
  }
  trailer.check = check_of(trailer);
  std::memcpy(file.data() + end, &trailer, sizeof trailer);
}

}  // namespace headrace
