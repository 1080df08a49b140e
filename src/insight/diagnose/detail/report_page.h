// What every page has around its parts: a reader's browser runs nothing of it and asks nobody.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace headrace::detail {

// Texts come in as they are and leave escaped.
struct PageHead {
  std::string title, verdict;
  bool is_positive = false;
  std::string written;  // UTC time; empty: unknown.
};
// One HTML file with `body` as its main part.
std::string page_html(const PageHead& head, const std::string& body);

// The command that makes the page again, and what it was measured on: the last two parts.
std::string origin_html(const std::string& command,
                        const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace headrace::detail
