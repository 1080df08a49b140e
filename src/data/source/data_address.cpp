#include "data/source/data_address.h"

#include <headrace/source.h>

#include <algorithm>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "data/source/sources.h"
#include "data/store/file_name.h"
#include "data/store/folder.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;
using Entries = std::vector<FolderEntry>;

constexpr std::size_t kNamed = 3;  // Of the entries that a message is about.
constexpr const char* kWanted = "IDX files, packs, or images in DIR/train/CLASS or DIR/CLASS";

// "cat, dog, fox and 9 more".
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamed); ++i) {
    text += (i == 0 ? "" : ", ") + printable_name(names[i]);
  }
  return names.size() > kNamed ? fmt::format("{} and {} more", text, names.size() - kNamed) : text;
}

template <class Wanted>
std::vector<std::string> names_where(const Entries& entries, const Wanted& is_wanted) {
  std::vector<std::string> names;
  for (const FolderEntry& entry : entries) {
    if (is_wanted(entry)) names.push_back(entry.name);
  }
  return names;
}

bool is_pack(const FolderEntry& entry) {
  return entry.kind == FolderEntry::Kind::file && Path(entry.name).extension() == ".pack";
}

bool is_split(std::string_view name) {
  const auto all = choices(Split{});
  return std::any_of(all.begin(), all.end(), [name](const auto& split) { return split.name == name; });
}

// Anywhere below it. Links to folders are not followed, so that the walk ends.
bool holds_image(const Path& folder) {
  std::error_code reason;
  const std::filesystem::recursive_directory_iterator end;
  for (std::filesystem::recursive_directory_iterator at(folder, reason); !reason && at != end; at.increment(reason)) {
    if (detail::is_image(at->path().filename().native())) return true;
  }
  return static_cast<bool>(reason);  // What cannot be listed is taken for data, so that opening them tells why.
}

std::string splits_text(const std::vector<Split>& splits) {
  std::string text;
  for (const Split split : splits) text += fmt::format("{}{}", text.empty() ? "" : ", ", choice_name(split));
  return text;
}

// One a kind.
std::vector<DataAddress> kinds_in(const Path& folder, const Entries& entries) {
  std::vector<DataAddress> kinds;
  const auto add = [&](const char* scheme, std::string shown_by) {
    kinds.push_back({scheme, folder, std::move(shown_by)});
  };
  if (!splits_of("idx:" + folder.string()).empty()) add("idx", "IDX files");
  const std::vector<Split> splits = splits_of("folder:" + folder.string());
  if (!splits.empty()) {
    add("folder", fmt::format("the folder{} {}", splits.size() == 1 ? "" : "s", splits_text(splits)));
  }
  const auto packs = names_where(entries, is_pack);
  if (!packs.empty()) add("pack", fmt::format("packs ({})", listed(packs)));
  const auto classes = names_where(entries, [&](const FolderEntry& entry) {
    return entry.kind == FolderEntry::Kind::folder && entry.name.front() != '.' && !is_split(entry.name) &&
           holds_image(folder / entry.name);
  });
  if (!classes.empty()) add("classes", fmt::format("folders of images ({})", listed(classes)));
  return kinds;
}

[[noreturn]] void fail_unknown(const std::string& name, const Entries& entries) {
  const auto images = names_where(entries, [](const FolderEntry& entry) { return detail::is_image(entry.name); });
  if (!images.empty()) {
    fail(ErrorCode::unsupported, "data: {} holds images without a folder for each class ({}); wanted DIR/CLASS", name,
         listed(images));
  }
  fail(ErrorCode::unsupported, "data: {} holds no data that are known ({}); wanted {}", name,
       listed(names_where(entries, [](const FolderEntry&) { return true; })), kWanted);
}

}  // namespace

DataAddress address_of(const Path& place) {
  const std::string name = printable_name(place.native());
  std::error_code ignored;  // What cannot be examined is listed, which tells why.
  if (std::filesystem::is_regular_file(place, ignored)) {
    if (place.extension() == ".pack") return {"pack", place, "a pack"};
    fail(ErrorCode::invalid_argument, "data: {} is a file; wanted a folder of data, or a pack (*.pack)", name);
  }
  const Entries entries = list_folder(place);
  if (entries.empty()) fail(ErrorCode::not_found, "data: {} is empty; wanted {}", name, kWanted);
  std::vector<DataAddress> kinds = kinds_in(place, entries);
  if (kinds.empty()) fail_unknown(name, entries);
  if (kinds.size() > 1) {
    fail(ErrorCode::invalid_argument, "data: {} holds {} and {}; wanted one kind of data", name, kinds[0].shown_by,
         kinds[1].shown_by);
  }
  return std::move(kinds.front());
}

}  // namespace headrace
