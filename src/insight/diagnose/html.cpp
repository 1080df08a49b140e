#include "insight/diagnose/detail/html.h"

#include <fmt/format.h>

#include "insight/diagnose/detail/figures.h"
#include "insight/diagnose/detail/text.h"

namespace headrace::detail {

std::string figure_html(const std::string& text) {
  std::string html;
  for (const char c : html_text(text)) {
    if (c == '-') {
      html += "\u2212";
    } else {
      html += c;
    }
  }
  return html;
}

std::string or_unavailable(const std::string& html) {
  return html.empty() || html == kUnavailable ? "<span class=\"unavailable\">unavailable</span>" : html;
}

std::string section_opening(const char* id, const char* heading) {
  return fmt::format("<section aria-labelledby=\"h-{0}\">\n<h2 id=\"h-{0}\">{1}</h2>\n", id, heading);
}

std::string column_html(const std::string& text, const char* css_class) {
  if (*css_class == '\0') return fmt::format("<th scope=\"col\">{}</th>", text);
  return fmt::format("<th scope=\"col\" class=\"{}\">{}</th>", css_class, text);
}

std::string table_opening(const std::string& columns) {
  return "<details><summary>The same as a table</summary><table><thead><tr>" + columns + "</tr></thead><tbody>\n";
}

}  // namespace headrace::detail
