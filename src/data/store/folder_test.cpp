#include "data/store/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <sys/stat.h>

#include <string>

#include "core/base/error_of.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Kind = FolderEntry::Kind;
using Folder = ScratchFolder;

std::string refusal(ErrorCode code, const std::filesystem::path& folder) {
  return error_of(code, [&] { list_folder(folder); });
}

TEST_F(Folder, ListsKindsAndSizesInOrderAndFollowsLinks) {
  write("b.jpg", "12345");
  write("a/inner.jpg", "1");
  write(".hidden", "");
  std::filesystem::create_symlink("b.jpg", folder_ / "c.jpg");
  std::filesystem::create_symlink("a", folder_ / "d");
  std::filesystem::create_symlink("nowhere", folder_ / "e");
  std::filesystem::create_symlink("f", folder_ / "f");
  ASSERT_EQ(mkfifo((folder_ / "g").c_str(), 0600), 0);
  const auto entries = list_folder(folder_);
  std::vector<std::pair<std::string, Kind>> found;
  for (const FolderEntry& entry : entries) found.emplace_back(entry.name, entry.kind);
  EXPECT_THAT(found, testing::ElementsAre(std::pair{".hidden", Kind::file}, std::pair{"a", Kind::folder},
                                          std::pair{"b.jpg", Kind::file}, std::pair{"c.jpg", Kind::file},
                                          std::pair{"d", Kind::folder}, std::pair{"e", Kind::dangling_link},
                                          std::pair{"f", Kind::dangling_link}, std::pair{"g", Kind::other}));
  EXPECT_EQ(entries[0].size, 0);
  EXPECT_EQ(entries[2].size, 5);
  EXPECT_EQ(entries[3].size, 5);
  EXPECT_EQ(entries[1].inode, entries[4].inode);
  EXPECT_EQ(entries[1].device, entries[4].device);
  EXPECT_NE(entries[1].inode, entries[2].inode);
}

TEST_F(Folder, NamesThatAreNotTextAreListed) {
  write("caf\xe9.jpg", "1");
  EXPECT_EQ(list_folder(folder_).at(0).name, "caf\xe9.jpg");
}

TEST_F(Folder, WhatCannotBeListedIsNamed) {
  EXPECT_THAT(refusal(ErrorCode::not_found, folder_ / "none\n"), HasSubstr("none\\x0a: No such file"));
  write("file", "1");
  EXPECT_THAT(refusal(ErrorCode::io, folder_ / "file"), AllOf(HasSubstr("/file: "), HasSubstr("Not a directory")));
  std::filesystem::create_directory(folder_ / "closed");
  std::filesystem::permissions(folder_ / "closed", std::filesystem::perms::none);
  const Unprivileged guard;
  EXPECT_THAT(refusal(ErrorCode::io, folder_ / "closed"),
              AllOf(HasSubstr("/closed: "), HasSubstr("Permission denied")));
}

// A folder that may be listed but not entered.
TEST_F(Folder, AnEntryThatCannotBeExaminedIsNamed) {
  write("half/x.jpg", "1");
  using std::filesystem::perms;
  std::filesystem::permissions(folder_ / "half", perms::owner_read | perms::group_read | perms::others_read);
  const Unprivileged guard;
  EXPECT_THAT(refusal(ErrorCode::io, folder_ / "half"),
              AllOf(HasSubstr("/half/x.jpg: "), HasSubstr("Permission denied")));
}

}  // namespace
}  // namespace headrace
