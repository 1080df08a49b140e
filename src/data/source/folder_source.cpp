#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/hash.h"
#include "data/source/detail/image_files.h"
#include "data/source/detail/scheme.h"
#include "data/source/sources.h"
#include "data/store/file_name.h"
#include "data/store/file_store.h"
#include "data/store/folder.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;
using detail::Listing;

// What is odd in one way: how often, and one of them to look at.
struct Oddity {
  std::string_view what;
  std::int64_t count = 0;
  std::string first{};

  void add(const Path& path) {
    if (count++ == 0) first = printable_name(path.native());
  }
};

// Lists the folder of a split. Its folders are told apart by device and inode, or a loop of links had no end.
class Walk {
 public:
  Walk(const Path& data_folder, Path root) : root_(std::move(root)) {
    note(data_folder);
    note(root_);
  }
  Listing list();

 private:
  using Identity = std::pair<std::uint64_t, std::uint64_t>;  // Device and inode.
  struct Below {
    std::string name;  // Of a folder, below the root.
    std::vector<FolderEntry> entries;
  };

  void note(const Path& folder);
  std::vector<Below> walk(const FolderEntry& top);
  void add_class(const FolderEntry& folder);
  void add_entry(const std::string& folder, const FolderEntry& entry);

  const Path root_;
  std::set<Identity> above_;  // Folders that no class can contain.
  Listing listing_;
  Oddity beside_{"Left out, as they lie beside the class folders"};
  Oddity foreign_{"Left out, as they are not .jpg, .jpeg or .png"};
  Oddity dangling_{"Left out, as they are links that lead nowhere"};
  Oddity special_{"Left out, as they are neither files nor folders"};
  Oddity again_{"Folders left out, as another way led to them before, perhaps a loop of links"};
  Oddity empty_{"Images of 0 bytes"};
};

void Walk::note(const Path& folder) {
  struct stat status {};
  if (::stat(folder.c_str(), &status) == 0) above_.emplace(status.st_dev, status.st_ino);  // Else listing it says why.
}

Listing Walk::list() {
  for (const FolderEntry& entry : list_folder(root_)) {
    if (entry.kind == FolderEntry::Kind::folder) {
      add_class(entry);
    } else {
      beside_.add(root_ / entry.name);
    }
  }
  if (listing_.classes.empty()) {
    fail(ErrorCode::corrupt_data, "data: {} has no class folders", printable_name(root_.native()));
  }
  for (const Oddity* oddity : {&beside_, &foreign_, &dangling_, &special_, &again_, &empty_}) {
    if (oddity->count == 0) continue;
    listing_.remarks.push_back(fmt::format("{}: {}; the first is {}", oddity->what, oddity->count, oddity->first));
  }
  return std::move(listing_);
}

void Walk::add_class(const FolderEntry& folder) {
  const std::size_t before = listing_.images.size();
  listing_.classes.push_back(folder.name);
  for (const Below& below : walk(folder)) {
    for (const FolderEntry& entry : below.entries) add_entry(below.name, entry);
  }
  if (listing_.images.size() == before) {
    fail(ErrorCode::corrupt_data, "data: the class folder {} has no images (.jpg, .jpeg, .png)",
         printable_name((root_ / folder.name).native()));
  }
}

// A class folder and all folders below it, by name: the order in which ImageFolder takes their files.
std::vector<Walk::Below> Walk::walk(const FolderEntry& top) {
  std::set<Identity> visited = above_;
  std::vector<Below> found;
  std::vector<FolderEntry> waiting{top};  // Their names are below the root, the next one is the last.
  while (!waiting.empty()) {
    const FolderEntry folder = std::move(waiting.back());
    waiting.pop_back();
    if (!visited.emplace(folder.device, folder.inode).second) {
      again_.add(root_ / folder.name);
      continue;
    }
    found.push_back({folder.name, list_folder(root_ / folder.name)});
    const auto& entries = found.back().entries;
    for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
      if (entry->kind != FolderEntry::Kind::folder) continue;
      waiting.push_back(*entry);
      waiting.back().name = folder.name + "/" + entry->name;
    }
  }
  std::sort(found.begin(), found.end(),
            [](const Below& left, const Below& right) { return python_less(left.name, right.name); });
  return found;
}

void Walk::add_entry(const std::string& folder, const FolderEntry& entry) {
  const auto path = [&] { return root_ / folder / entry.name; };
  if (entry.kind == FolderEntry::Kind::folder) return;
  if (!detail::is_image(entry.name)) return foreign_.add(path());
  if (entry.kind == FolderEntry::Kind::dangling_link) return dangling_.add(path());
  if (entry.kind == FolderEntry::Kind::other) return special_.add(path());
  if (entry.size == 0) empty_.add(path());
  listing_.add(folder + "/" + entry.name, entry.size, static_cast<std::uint32_t>(listing_.classes.size() - 1));
}

bool is_folder(const Path& path) {
  std::error_code ignored;  // A folder that cannot be examined is tried, so that listing it tells why.
  return std::filesystem::is_directory(path, ignored) || ignored == std::errc::permission_denied;
}

bool folder_has(const Path& folder, Split split) {
  return is_folder(folder / choice_name(split));
}

// The same labels must mean the same in all splits.
void check_same_classes(const std::vector<std::string>& classes, const Path& own, const Path& other) {
  std::vector<std::string> others;
  for (const FolderEntry& entry : list_folder(other)) {
    if (entry.kind == FolderEntry::Kind::folder) others.push_back(entry.name);
  }
  if (classes == others) return;
  std::vector<std::string> mine_alone, others_alone;
  std::set_difference(classes.begin(), classes.end(), others.begin(), others.end(), std::back_inserter(mine_alone),
                      python_less);
  std::set_difference(others.begin(), others.end(), classes.begin(), classes.end(), std::back_inserter(others_alone),
                      python_less);
  const bool is_mine = !mine_alone.empty();
  fail(ErrorCode::corrupt_data, "data: the splits have different classes: {} has {}, {} has not",
       printable_name((is_mine ? own : other).native()),
       printable_name(is_mine ? mine_alone.front() : others_alone.front()),
       printable_name((is_mine ? other : own).native()));
}

}  // namespace

bool detail::is_image(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  std::string ending{name.substr(dot + 1)};
  for (char& letter : ending) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return ending == "jpg" || ending == "jpeg" || ending == "png";
}

// The label is the first part of a name.
std::uint64_t detail::fingerprint_of(std::span<const char> names, std::span<const std::int64_t> sizes) {
  Xxh3Stream stream;
  stream.update(std::as_bytes(names));
  stream.update(std::as_bytes(sizes));
  return stream.digest();
}

std::unique_ptr<Source> detail::open_image_folder(const Path& folder, Split split, const OpenStore& open_store) {
  if (!folder_has(folder, split)) return nullptr;
  const Path root = folder / choice_name(split);
  Listing listing = Walk{folder, root}.list();
  for (const Choice<Split>& other : choices(split)) {
    if (other.value == split || !folder_has(folder, other.value)) continue;
    check_same_classes(listing.classes, root, folder / other.name);
  }
  // Beside the split, not in it, or ImageFolder would take it for a class.
  const Path index_file = folder / ".headrace-index" / root.filename() / "entropy.records";
  return detail::open_image_files(std::move(listing), open_store(root), index_file);
}

detail::Scheme detail::schemes::folder() {
  const auto open = [](const Path& folder, Split split, const SampleLimits& /*limits*/) {
    return open_image_folder(folder, split, [](const Path& root) { return std::make_unique<FileStore>(root); });
  };
  return {"folder", "DIR", "folders train, val and test", folder_has, open};
}

// An index of its images would lie in a class folder, so that there is no place for one.
detail::Scheme detail::schemes::classes() {
  const auto has = [](const Path& /*folder*/, Split split) { return split == Split::train; };
  const auto open = [](const Path& folder, Split split, const SampleLimits& /*limits*/) -> std::unique_ptr<Source> {
    if (split != Split::train) return nullptr;
    return open_image_files(Walk{folder, folder}.list(), std::make_unique<FileStore>(folder), {});
  };
  return {"classes", "DIR", "train alone", has, open};
}

}  // namespace headrace
