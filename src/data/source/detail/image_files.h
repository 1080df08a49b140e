// Files of images, each with a label: what the folder of a split holds, or a list names.
#pragma once

#include <headrace/source.h>
#include <headrace/store.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace headrace::detail {

// Images in order. A million names are kept one behind the other, each with its NUL, not in a million allocations.
struct Listing {
  struct Image {
    std::uint64_t name_at;
    std::int64_t size;  // Bytes of the file.
    std::uint32_t label;
  };

  void add(std::string_view name, std::int64_t size, std::uint32_t label) {
    images.push_back({names.size(), size, label});
    names += name;
    names += '\0';
  }

  std::vector<std::string> classes;  // Their names; empty ones where they have numbers only.
  std::vector<Image> images;
  std::string names;             // Below the root, or absolute.
  bool classes_in_names = true;  // Names begin with that of the class: "cat/1.jpg".
  std::vector<std::string> remarks;
};

// The images of `listing`, whose names are keys of `files`.
std::unique_ptr<Source> open_image_files(Listing listing, std::unique_ptr<const Store> files,
                                         std::filesystem::path index_file);

// Of an image's file of `bytes` bytes, of which `read_front` gives the first so many; 0 x 0 where its header tells
// none. Reads the first 4 KiB, and more only where the header is longer.
ImageSize size_in_header(std::int64_t bytes,
                         const std::function<std::span<const std::uint8_t>(std::int64_t bytes)>& read_front);

// A name's place below a folder: without what leads out of it.
std::string below_folder(std::string_view name);

}  // namespace headrace::detail
