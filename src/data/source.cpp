#include <headrace/error.h>
#include <headrace/source.h>

#include <string_view>

#include "data/detail/sources.h"
#include "store/file_name.h"

namespace headrace {
namespace {

struct Scheme {
  std::string_view name;
  std::string_view what;  // Stands behind the colon.
  std::unique_ptr<Source> (*open)(const std::filesystem::path& path, Split split, const SampleLimits& limits);
};

template <std::unique_ptr<Source> (*kOpen)(const std::filesystem::path&, Split)>
std::unique_ptr<Source> without_limits(const std::filesystem::path& path, Split split, const SampleLimits& /*limits*/) {
  return kOpen(path, split);
}

constexpr Scheme kSchemes[] = {{"idx", "DIR", detail::open_idx},
                               {"folder", "DIR", without_limits<detail::open_image_folder>},
                               {"list", "FILE", without_limits<detail::open_list>},
                               {"pack", "PATH", without_limits<detail::open_pack>}};

std::string known_schemes() {
  std::string known;
  for (const Scheme& scheme : kSchemes)
    known += fmt::format("{}{}:{}", known.empty() ? "" : ", ", scheme.name, scheme.what);
  return known;
}

void require_folder(const std::filesystem::path& folder, std::string_view scheme) {
  std::error_code reason;
  const auto status = std::filesystem::status(folder, reason);
  const std::string name = printable_name(folder.native());
  if (status.type() == std::filesystem::file_type::not_found) fail(ErrorCode::not_found, "data: no folder {}", name);
  if (reason) fail(ErrorCode::io, "data: cannot examine {}: {}", name, reason.message());
  if (!std::filesystem::is_directory(status)) {
    fail(ErrorCode::not_found, "data: {} is not a folder; {}: wants the folder of the data", name, scheme);
  }
}

}  // namespace

std::optional<Sides> Source::sides(std::int64_t index, std::vector<std::uint8_t>& /*buffer*/) const {
  if (height() > 0) return Sides{height(), width()};
  const std::optional<Sample> told = outline(index);
  return told ? std::optional{Sides{told->height, told->width}} : std::nullopt;
}

std::span<const std::uint8_t> Source::read_rows(std::int64_t index, int first, int count,
                                                std::vector<std::uint8_t>& /*buffer*/) const {
  fail(ErrorCode::internal, "data: {}: its source gives no rows {} + {} alone", sample_name(index), first, count);
}

std::unique_ptr<Source> open_source(const std::string& uri, Split split, const SampleLimits& limits) {
  const std::string_view whole = uri;
  const std::size_t colon = whole.find(':');
  for (const Scheme& scheme : kSchemes) {
    if (colon == std::string_view::npos || whole.substr(0, colon) != scheme.name) continue;
    const std::filesystem::path path = whole.substr(colon + 1);
    if (path.empty()) {
      fail(ErrorCode::invalid_argument, "data: source '{}' names no {}; wanted {}:{}", uri,
           scheme.what == "DIR" ? "folder" : "file", scheme.name, scheme.what);
    }
    if (scheme.what == "DIR") require_folder(path, scheme.name);
    return scheme.open(path, split, limits);
  }
  fail(ErrorCode::invalid_argument, "data: unknown source '{}'; known: {}", printable_name(uri), known_schemes());
}

}  // namespace headrace
