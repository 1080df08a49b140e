// Where the wall time of a loop went, for the page.
#pragma once

#include <headrace/report.h>

#include <string>

namespace headrace::detail {

std::string wall_html(const Report& report);  // Of wall and waits; empty where nobody has either.

}  // namespace headrace::detail
