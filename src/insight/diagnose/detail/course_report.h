// What a live run had in force, from its first update to its last.
#pragma once

#include <headrace/report.h>

#include <string>

#include "insight/diagnose/detail/text_page.h"

namespace headrace::detail {

// A part of the page with a line a change, and nothing without a course. At most 150 kB, however long the run was.
std::string course_html(const Report& report);
void write_course(TextPage& page, const Report& report);

}  // namespace headrace::detail
