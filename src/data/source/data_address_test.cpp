#include "data/source/data_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/error.h>
#include <headrace/source.h>

#include <filesystem>
#include <string>
#include <tuple>

#include "core/base/error_of.h"
#include "data/source/read_sample.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class DataAddressOf : public ScratchFolder {
 protected:
  std::string uri(const std::string& below = "") const { return address_of(place(below)).uri(); }
  std::filesystem::path place(const std::string& below) const { return below.empty() ? folder_ : folder_ / below; }
  std::string refusal(ErrorCode code, const std::string& below = "") const {
    return error_of(code, [&] { address_of(place(below)); });
  }
};

TEST_F(DataAddressOf, EachKindIsToldByWhatIsThere) {
  write("idx/train-images-idx3-ubyte.gz", "");
  write("idx/t10k-labels-idx1-ubyte", "");
  write("splits/train/cat/1.jpg", "");
  write("splits/val/cat/1.jpg", "");
  write("splits/readme.txt", "");
  write("packs/a.pack", "");
  write("packs/b.pack", "");
  write("alone.pack", "");
  write("plain/cat/1.png", "");
  write("plain/dog/deeper/1.JPEG", "");
  write("plain/.cache/1.jpg", "");
  write("plain/notes/1.txt", "");
  for (const auto& [below, scheme, shown_by] :
       {std::tuple{"idx", "idx", "IDX files"}, std::tuple{"splits", "folder", "the folders train, val"},
        std::tuple{"packs", "pack", "packs (a.pack, b.pack)"}, std::tuple{"alone.pack", "pack", "a pack"},
        std::tuple{"plain", "classes", "folders of images (cat, dog)"}}) {
    const DataAddress found = address_of(folder_ / below);
    EXPECT_EQ(found.scheme, scheme) << below;
    EXPECT_EQ(found.shown_by, shown_by);
    EXPECT_EQ(found.uri(), std::string(scheme) + ":" + (folder_ / below).string());
  }
}

TEST_F(DataAddressOf, WhatCannotBeToldIsOneLineThatSaysWhatWasFound) {
  EXPECT_THAT(refusal(ErrorCode::not_found), AllOf(HasSubstr(folder_.string() + " is empty"), HasSubstr("IDX files")));
  EXPECT_THAT(refusal(ErrorCode::not_found, "absent"), HasSubstr("absent"));
  write("table.csv", "a,b\n1,2\n");
  EXPECT_THAT(refusal(ErrorCode::unsupported),
              AllOf(HasSubstr("no data that are known (table.csv)"), HasSubstr("packs")));
  EXPECT_THAT(refusal(ErrorCode::invalid_argument, "table.csv"), HasSubstr("table.csv is a file; wanted a folder"));
  write("1.jpg", "");
  EXPECT_THAT(refusal(ErrorCode::unsupported), HasSubstr("images without a folder for each class (1.jpg)"));
}

TEST_F(DataAddressOf, TwoKindsInOneFolderAreRefused) {
  write("cat/1.jpg", "");
  EXPECT_EQ(uri(), "classes:" + folder_.string());
  write("train-images-idx3-ubyte", "");
  EXPECT_THAT(refusal(ErrorCode::invalid_argument), HasSubstr("holds IDX files and folders of images (cat)"));
  std::filesystem::remove(folder_ / "train-images-idx3-ubyte");
  write("train/cat/1.jpg", "");  // A split, or a class of that name?
  EXPECT_THAT(refusal(ErrorCode::invalid_argument), HasSubstr("holds the folder train and folders of images (cat)"));
  std::filesystem::remove_all(folder_ / "cat");
  EXPECT_EQ(uri(), "folder:" + folder_.string());
  write("a.pack", "");
  EXPECT_THAT(refusal(ErrorCode::invalid_argument), HasSubstr("holds the folder train and packs (a.pack)"));
}

TEST_F(DataAddressOf, AFolderThatMayNotBeListedIsNamed) {
  write("closed/cat/1.jpg", "");
  std::filesystem::permissions(folder_ / "closed", std::filesystem::perms::none);
  {
    const Unprivileged nobody;
    EXPECT_THAT(refusal(ErrorCode::io, "closed"), AllOf(HasSubstr("closed"), HasSubstr("Permission denied")));
  }
  std::filesystem::permissions(folder_ / "closed", std::filesystem::perms::all);
}

TEST_F(DataAddressOf, ALoopOfLinksEnds) {
  write("cat/1.txt", "");
  std::filesystem::create_directory_symlink(folder_, folder_ / "cat" / "round");
  EXPECT_THAT(refusal(ErrorCode::unsupported), HasSubstr("(cat)"));
  write("cat/2.jpg", "");
  EXPECT_EQ(uri(), "classes:" + folder_.string());
}

// The scheme of plain class folders: torchvision's ImageFolder with one root.
class ClassFolders : public ScratchFolder {
 protected:
  std::string uri() const { return "classes:" + folder_.string(); }
};

TEST_F(ClassFolders, AreTheSplitTrainAndNoOther) {
  for (const char* name : {"dog/1.jpg", "cat/2.png", "cat/below/3.jpeg"}) write(name, name);
  EXPECT_THAT(splits_of(uri()), ElementsAre(Split::train));
  EXPECT_EQ(find_source(uri(), Split::val), nullptr);
  const auto source = open_source(uri(), Split::train);
  EXPECT_EQ(source->info().num_classes, 2);
  EXPECT_THAT(source->info().class_names, ElementsAre("cat", "dog"));
  EXPECT_THAT(source->info().remarks, IsEmpty());
  EXPECT_TRUE(source->info().index_file.empty());  // A folder for it would be a class.
  ASSERT_EQ(source->size(), 3);
  EXPECT_EQ(source->name(2), folder_.string() + "/dog/1.jpg");
  EXPECT_EQ(label_of(*source, 2), 1);
}

TEST_F(ClassFolders, AreThoseOfTheSameFolderAsASplit) {
  for (const char* name : {"train/cat/1.jpg", "train/dog/2.jpg"}) write(name, name);
  const auto split = open_source("folder:" + folder_.string(), Split::train);
  const auto plain = open_source("classes:" + (folder_ / "train").string(), Split::train);
  EXPECT_EQ(split->info().fingerprint, plain->info().fingerprint);
  EXPECT_EQ(split->info().class_names, plain->info().class_names);
}

}  // namespace
}  // namespace headrace
