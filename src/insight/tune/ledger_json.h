// The ledger as a JSON document, for those who build larger documents of it.
#pragma once

#include <headrace/ledger.h>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

// ledger.json: {"format": "headrace-ledger", "version": 1, ...}. Numbers that are not finite become null. Sentences may
// hold bytes of foreign exceptions: dump with error_handler_t::replace.
nlohmann::ordered_json to_json(const Ledger& ledger);

}  // namespace headrace
