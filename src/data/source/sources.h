// What the sources of open_source's schemes share, and as tests open them: over a store or calls of their own.
#pragma once

#include <headrace/source.h>
#include <headrace/store.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "data/store/file_calls.h"

namespace headrace::detail {

// By its name: .jpg, .jpeg or .png, in any case.
bool is_image(std::string_view name);

// What the names of a split's IDX files begin with: MNIST calls its test t10k.
std::string_view idx_prefix(Split split);

// The fingerprint of a folder of images, and of a pack of them: of their names, each ended by a NUL, and their sizes.
std::uint64_t fingerprint_of(std::span<const char> names, std::span<const std::int64_t> sizes);

// What the files below a folder are read from: a FileStore, and what is put around it.
using OpenStore = std::function<std::unique_ptr<const Store>(const std::filesystem::path& root)>;
// Errors: see open_source. Null: there is no such split. `folder` exists and is a folder.
std::unique_ptr<Source> open_image_folder(const std::filesystem::path& folder, Split split,
                                          const OpenStore& open_store);
// Its images are read by `calls`, which must live as long as the source.
std::unique_ptr<Source> open_pack(const std::filesystem::path& path, Split split, const FileCalls& calls);

}  // namespace headrace::detail
