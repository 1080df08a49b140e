// How every chart of a report begins, and the labels in it.
#pragma once

#include <string>

namespace headrace::detail {

// The opening tag with <title> and <desc>, which are escaped already. `id` must be unique in the page, `height` is in
// pixels.
std::string svg_opening(const std::string& id, const char* css_class, int height, const std::string& title,
                        const std::string& description);
// Of a span or thread: clean, cut so that many of them stay short, and escaped.
std::string name_html(const std::string& name);
// Clean, cut to what fits beside a figure on a phone, and escaped.
std::string label_html(const std::string& text);

}  // namespace headrace::detail
