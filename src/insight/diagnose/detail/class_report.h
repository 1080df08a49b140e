// What a report says of a training's answers by class, for the page and for a terminal.
#pragma once

#include <headrace/report.h>

#include <cstddef>
#include <string>
#include <vector>

#include "insight/diagnose/detail/text_page.h"

namespace headrace::detail {

// The classes of which the fewest samples were right, by share, the worst first, at most so many; among equals the one
// with more samples. Those without a sample are in no order and left out.
std::vector<Report::ClassFigures> worst_classes(const Report& report, std::size_t most);

// Both nothing where there are no counts by class.
std::string classes_html(const Report& report);
void write_classes(TextPage& page, const Report& report);

}  // namespace headrace::detail
