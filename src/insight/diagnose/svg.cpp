#include "insight/diagnose/detail/svg.h"

#include <fmt/format.h>

#include "insight/diagnose/detail/text.h"

namespace headrace::detail {

std::string svg_opening(const std::string& id, const char* css_class, int height, const std::string& title,
                        const std::string& description) {
  return fmt::format(
      "<svg class=\"{1}\" role=\"img\" width=\"100%\" height=\"{2}\" aria-labelledby=\"{0}-title {0}-desc\">"
      "<title id=\"{0}-title\">{3}</title><desc id=\"{0}-desc\">{4}</desc>\n",
      id, css_class, height, title, description);
}

std::string name_html(const std::string& name) {
  constexpr int kColumns = 60;
  return html_text(fitted(clean_text(name), kColumns));
}

std::string label_html(const std::string& text) {
  constexpr int kColumns = 26;
  return html_text(fitted(clean_text(text), kColumns));
}

}  // namespace headrace::detail
