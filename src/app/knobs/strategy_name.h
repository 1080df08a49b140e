// What a strategy may be called.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace headrace {

inline constexpr std::string_view kStrategyPrefix = "custom.";  // Of the keys of strategies.

// Error{invalid_argument}: a name of another form than Strategy::name() says, of a change of headrace's own, or among
// `taken`; no sentence.
void check_strategy(std::string_view name, std::string_view sentence, std::span<const std::string> taken);

}  // namespace headrace
