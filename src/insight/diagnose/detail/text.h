// Text from files and users, made safe to show: valid UTF-8, one line, no control characters, no credentials.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace::detail {

// Bytes that are not UTF-8, control characters and those that reorder text (bidirectional overrides) become U+FFFD;
// line breaks and tabs become spaces; URLs lose their credentials.
std::string clean_text(std::string_view text);
// The same, with & < > " ' as character references: safe as content and within a quoted attribute. Cut as fitted()
// cuts, so that no message of a failure makes a page that no browser opens.
inline constexpr int kTextColumns = 2'000, kCommandColumns = 40'000;
std::string html_text(std::string_view text, int columns_max = kTextColumns);

// Columns that clean text takes on a terminal: wide East Asian characters and emoji two, combining marks none.
int columns(std::string_view text);
// At most `width` columns (at least 1), cut with an ellipsis.
std::string fitted(std::string_view text, int width);
// `fitted`, filled with spaces to exactly `width` columns.
std::string padded(std::string_view text, int width);
// Lines of at most `width` columns (at least 2), broken at spaces, within a word only where one is longer than a line.
std::vector<std::string> wrapped(std::string_view text, int width);

}  // namespace headrace::detail
