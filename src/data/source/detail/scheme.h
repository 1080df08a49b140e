// What may stand before the colon of a source's address. A scheme is a file with the function that gives it, and a line
// in schemes.inc.
#pragma once

#include <headrace/source.h>

#include <filesystem>
#include <memory>
#include <string_view>

namespace headrace::detail {

struct Scheme {
  std::string_view name;
  std::string_view what;      // Stands behind the colon. DIR: a folder, which `has` and `open` may take for granted.
  std::string_view split_is;  // Where this scheme has a split.
  bool (*has)(const std::filesystem::path& path, Split split);
  // Errors: see open_source. Null: there is no such split.
  std::unique_ptr<Source> (*open)(const std::filesystem::path& path, Split split, const SampleLimits& limits);
};

namespace schemes {
#define HEADRACE_SCHEME(name) Scheme name();
#include "data/source/schemes.inc"
#undef HEADRACE_SCHEME
}  // namespace schemes

}  // namespace headrace::detail
