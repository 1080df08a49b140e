#include <headrace/error.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "data/detail/sources.h"
#include "store/file_name.h"
#include "store/file_store.h"
#include "store/folder.h"

namespace headrace {
namespace {

using Path = std::filesystem::path;

bool is_picture(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return false;
  std::string ending{name.substr(dot + 1)};
  for (char& letter : ending) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return ending == "jpg" || ending == "jpeg" || ending == "png";
}

// Pictures in order. A million names are kept one behind the other, each with its NUL, not in a million allocations.
struct Listing {
  struct Picture {
    std::uint64_t name_at;
    std::int64_t size;  // Bytes of the file.
    std::uint32_t label;
  };
  std::vector<std::string> classes;
  std::vector<Picture> pictures;
  std::string names;  // Below the folder of the split: "cat/1.jpg".
  std::vector<std::string> remarks;
};

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
  Oddity empty_{"Pictures of 0 bytes"};
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
  const std::size_t before = listing_.pictures.size();
  listing_.classes.push_back(folder.name);
  for (const Below& below : walk(folder)) {
    for (const FolderEntry& entry : below.entries) add_entry(below.name, entry);
  }
  if (listing_.pictures.size() == before) {
    fail(ErrorCode::corrupt_data, "data: the class folder {} has no pictures (.jpg, .jpeg, .png)",
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
  if (!is_picture(entry.name)) return foreign_.add(path());
  if (entry.kind == FolderEntry::Kind::dangling_link) return dangling_.add(path());
  if (entry.kind == FolderEntry::Kind::other) return special_.add(path());
  if (entry.size == 0) empty_.add(path());
  listing_.pictures.push_back(
      {listing_.names.size(), entry.size, static_cast<std::uint32_t>(listing_.classes.size() - 1)});
  listing_.names += folder;
  listing_.names += '/';
  listing_.names += entry.name;
  listing_.names += '\0';
}

class FolderSource final : public Source {
 public:
  // `root`, the folder of a split, has a name of its own.
  FolderSource(Listing listing, const Path& root, const FileCalls& calls)
      : listing_(std::move(listing)), files_(root, calls), root_(root) {
    std::vector<std::int64_t> sizes;
    sizes.reserve(listing_.pictures.size());
    for (const Listing::Picture& picture : listing_.pictures) sizes.push_back(picture.size);
    fingerprint_ = detail::fingerprint_of(listing_.names, sizes);
  }

  std::int64_t size() const override { return std::ssize(listing_.pictures); }
  std::int64_t classes() const override { return std::ssize(listing_.classes); }
  int height() const override { return 0; }
  int width() const override { return 0; }
  int channels() const override { return 3; }

  Sample read(std::int64_t index, std::vector<std::uint8_t>& buffer) const override {
    if (index < 0 || index >= size()) {
      fail(ErrorCode::invalid_argument, "data: sample {}: there are {} samples", index, size());
    }
    const Listing::Picture& picture = at(index);
    return {.bytes = files_.read(listing_.names.data() + picture.name_at, picture.size, buffer),
            .form = PictureForm::encoded,
            .label = picture.label};
  }
  std::int64_t label(std::int64_t index) const override { return at(index).label; }
  std::int64_t sample_bytes(std::int64_t index) const override { return static_cast<std::int64_t>(at(index).size); }
  std::string sample_name(std::int64_t index) const override {
    return files_.path_of(listing_.names.data() + at(index).name_at);
  }
  std::string stored_name(std::int64_t index) const override { return listing_.names.data() + at(index).name_at; }
  std::vector<std::string> class_names() const override {
    std::vector<std::string> names;
    for (const std::string& name : listing_.classes) names.push_back(printable_name(name));
    return names;
  }
  std::vector<std::string> remarks() const override { return listing_.remarks; }
  std::uint64_t fingerprint() const override { return fingerprint_; }
  // Beside the split, not in it, or ImageFolder would take it for a class.
  Path index_file() const override {
    return root_.parent_path() / ".headrace-index" / root_.filename() / "entropy.records";
  }

 private:
  const Listing::Picture& at(std::int64_t index) const { return listing_.pictures[static_cast<std::size_t>(index)]; }

  const Listing listing_;
  const FileStore files_;
  const Path root_;
  std::uint64_t fingerprint_;
};

bool is_folder(const Path& path) {
  std::error_code ignored;  // A folder that cannot be examined is tried, so that listing it tells why.
  return std::filesystem::is_directory(path, ignored) || ignored == std::errc::permission_denied;
}

// The folder of a split, if there is one.
std::optional<Path> find_split(const Path& folder, Split split) {
  if (split == Split::train) return is_folder(folder / "train") ? std::optional{folder / "train"} : std::nullopt;
  for (const char* name : {"test", "val"}) {
    if (is_folder(folder / name)) return folder / name;
  }
  return std::nullopt;
}

// The same labels must mean the same in both splits.
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

// The label is the first part of a name.
std::uint64_t detail::fingerprint_of(std::span<const char> names, std::span<const std::int64_t> sizes) {
  Xxh3Stream stream;
  stream.update(std::as_bytes(names));
  stream.update(std::as_bytes(sizes));
  return stream.digest();
}

std::unique_ptr<Source> detail::open_image_folder(const Path& folder, Split split) {
  return open_image_folder(folder, split, FileCalls::system());
}

std::unique_ptr<Source> detail::open_image_folder(const Path& folder, Split split, const FileCalls& calls) {
  const std::string name = printable_name(folder.native());
  const auto root = find_split(folder, split);
  if (!root) {
    if (split == Split::train) fail(ErrorCode::not_found, "data: no folder {}/train", name);
    fail(ErrorCode::not_found, "data: neither {0}/test nor {0}/val is a folder", name);
  }
  Listing listing = Walk{folder, *root}.list();
  const auto other = find_split(folder, split == Split::train ? Split::test : Split::train);
  if (other) check_same_classes(listing.classes, *root, *other);
  if (split == Split::test && is_folder(folder / "test") && is_folder(folder / "val")) {
    listing.remarks.push_back(fmt::format("There are {0}/test and {0}/val; {0}/test is read", name));
  }
  return std::make_unique<FolderSource>(std::move(listing), *root, calls);
}

}  // namespace headrace
