// doctor FILE: what a performance optimizer's get_performance_summary(), written as JSON, tells.
#pragma once

#include <filesystem>

#include "app/cli/doctor.h"
#include "core/hardware/machine.h"

namespace headrace {

// compile_failed: torch.compile was asked for and every mode of it was dropped, with each attempt and its reason.
// memory_nearly_full: the monitored peak against what may be used `here`. Error{not_found}, {io}: no such file;
// {corrupt_data}: it is no such summary.
RunReport check_summary(const std::filesystem::path& file, const Machine& here);

}  // namespace headrace
