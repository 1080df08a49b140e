// Pieces that every part of the HTML report is made of.
#pragma once

#include <string>

namespace headrace::detail {

// A figure that may be negative, escaped, with a minus sign in place of the hyphen.
std::string figure_html(const std::string& text);
// `html` as it is; "unavailable" where it is empty or that word.
std::string or_unavailable(const std::string& html);
// The opening of a part and its heading; `id` must be unique in the page.
std::string section_opening(const char* id, const char* heading);
// A heading cell of a table; `text` is escaped already, `css_class` may be empty.
std::string column_html(const std::string& text, const char* css_class = "");
// "<details><summary>The same as a table</summary>", to be ended with kTableEnd: `columns` are cells of its head.
std::string table_opening(const std::string& columns);
inline constexpr const char* kTableEnd = "</tbody></table></details>\n";

}  // namespace headrace::detail
