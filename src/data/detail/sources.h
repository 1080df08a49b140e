// The sources that open_source knows, one function a scheme.
#pragma once

#include <headrace/source.h>

#include <filesystem>
#include <memory>

#include "store/file_calls.h"

namespace headrace::detail {

// `folder` exists and is a folder. Errors: see open_source.
std::unique_ptr<Source> open_idx(const std::filesystem::path& folder, Split split);
std::unique_ptr<Source> open_image_folder(const std::filesystem::path& folder, Split split);

// Its pictures are read by `calls`, which must live as long as the source.
std::unique_ptr<Source> open_image_folder(const std::filesystem::path& folder, Split split, const FileCalls& calls);

}  // namespace headrace::detail
