// A pack by its path: one file, or a folder of them.
#pragma once

#include <filesystem>
#include <vector>

namespace headrace {

// The files of the pack at `path`, in the order of their samples: itself, or the files named *.pack in it, by name.
// Error{not_found}: no such path, or a folder without any, naming it. Error{io}: a folder that cannot be listed.
std::vector<std::filesystem::path> pack_shards(const std::filesystem::path& path);

}  // namespace headrace
