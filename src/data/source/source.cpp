#include <headrace/source.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/fail.h"
#include "data/source/detail/scheme.h"
#include "data/store/file_name.h"

namespace headrace {
namespace {

using detail::Scheme;

std::span<const Scheme> all_schemes() {
  static const Scheme all[] = {
#define HEADRACE_SCHEME(name) detail::schemes::name(),
#include "data/source/schemes.inc"
#undef HEADRACE_SCHEME
  };
  return all;
}

std::string known_schemes() {
  std::string known;
  for (const Scheme& scheme : all_schemes())
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

struct Place {
  const Scheme& scheme;
  std::filesystem::path path;
};

Place place_of(const std::string& uri) {
  const std::string_view whole = uri;
  const std::size_t colon = whole.find(':');
  for (const Scheme& scheme : all_schemes()) {
    if (colon == std::string_view::npos || whole.substr(0, colon) != scheme.name) continue;
    std::filesystem::path path = whole.substr(colon + 1);
    if (path.empty()) {
      fail(ErrorCode::invalid_argument, "data: source '{}' names no {}; wanted {}:{}", uri,
           scheme.what == "DIR" ? "folder" : "file", scheme.name, scheme.what);
    }
    if (scheme.what == "DIR") require_folder(path, scheme.name);
    return {scheme, std::move(path)};
  }
  fail(ErrorCode::invalid_argument, "data: unknown source '{}'; known: {}", printable_name(uri), known_schemes());
}

std::vector<Split> splits_at(const Place& place) {
  std::vector<Split> there;
  for (const Choice<Split>& split : choices(Split{})) {
    if (place.scheme.has(place.path, split.value)) there.push_back(split.value);
  }
  return there;
}

}  // namespace

ImageShape stored_shape(const Schema& schema) {
  const auto image = schema.image();
  if (!image) return {0, 0, 0};
  const auto side = [&](std::size_t axis) {
    return static_cast<int>(std::max<std::int64_t>(schema[*image].shape[axis], 0));  // Ragged: 0.
  };
  return {side(2), side(0), side(1)};
}

EndOfSamples::EndOfSamples(std::int64_t samples)
    : Error(ErrorCode::internal, fmt::format("data: ended after {} samples", samples)), samples_(samples) {}

Split split_named(std::string_view name, std::string_view what) {
  for (const Choice<Split>& split : choices(Split{})) {
    if (split.name == name) return split.value;
  }
  fail(ErrorCode::invalid_argument, "{} \"{}\"; wanted train | val | test", what, printable_name(std::string(name)));
}

std::vector<Split> splits_of(const std::string& uri) {
  return splits_at(place_of(uri));
}

std::unique_ptr<Source> find_source(const std::string& uri, Split split, const SampleLimits& limits) {
  const Place place = place_of(uri);
  return place.scheme.open(place.path, split, limits);
}

std::unique_ptr<Source> open_source(const std::string& uri, Split split, const SampleLimits& limits) {
  const Place place = place_of(uri);
  if (auto source = place.scheme.open(place.path, split, limits)) return source;
  std::string there;
  for (const Split one : splits_at(place)) there += fmt::format("{}{}", there.empty() ? "" : ", ", choice_name(one));
  fail(ErrorCode::not_found, "data: {} has no split {}; there is {} ({}: splits are {})",
       printable_name(place.path.native()), choice_name(split), there.empty() ? "none" : there, place.scheme.name,
       place.scheme.split_is);
}

}  // namespace headrace
