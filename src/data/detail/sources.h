// The sources that open_source knows, one function a scheme.
#pragma once

#include <headrace/source.h>

#include <filesystem>
#include <memory>

namespace headrace::detail {

// `folder` exists and is a folder. Errors: see open_source.
std::unique_ptr<Source> open_idx(const std::filesystem::path& folder, Split split);
std::unique_ptr<Source> open_image_folder(const std::filesystem::path& folder, Split split);

}  // namespace headrace::detail
