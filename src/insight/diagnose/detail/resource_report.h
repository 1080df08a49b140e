// What a report says of the resources that a step loses time to, for the page and for a terminal.
#pragma once

#include <headrace/report.h>

#include <string>

#include "insight/diagnose/detail/text_page.h"

namespace headrace::detail {

// Both nothing where there is no verdict over resources.
std::string resources_html(const Report& report);
void write_resources(TextPage& page, const Report& report);

}  // namespace headrace::detail
