// Which kind of data lies in a folder, told by the names of what is there.
#pragma once

#include <filesystem>
#include <string>

namespace headrace {

// Where data lie, in the words of open_source().
struct DataAddress {
  std::string scheme;  // "folder"
  std::filesystem::path path;
  std::string shown_by;  // What tells the kind, for a person: "the folders train, val".

  std::string uri() const { return scheme + ":" + path.string(); }
};

// `place` is a pack (*.pack), or a folder with one of these: IDX files, folders train, val or test, packs, or a folder
// of images for each class. Other entries are no data and say nothing, but for folders with images beside other data.
// No file is read. Costs a listing of `place`, and of each class folder until its first image.
//
// Error: invalid_argument, another file, or two kinds of data; not_found, nothing there, or an empty folder;
// unsupported, nothing of these in it; io, it cannot be listed. Each names `place` and what was found.
DataAddress address_of(const std::filesystem::path& place);

}  // namespace headrace
