#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/source.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "core/base/error_of.h"
#include "data/source/read_sample.h"
#include "data/store/scratch_folder.h"

namespace headrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// The files hold their own names: opening looks at no image.
class FolderSource : public ScratchFolder {
 protected:
  void image(const std::string& name) { write(name, name); }
  void two_classes() {
    for (const char* name :
         {"train/cat/1.jpg", "train/cat/2.png", "train/dog/3.jpeg", "test/cat/4.jpg", "test/dog/5.jpg"})
      image(name);
  }
  std::string uri() const { return "folder:" + folder_.string(); }
  std::unique_ptr<Source> open(Split split = Split::train) const { return open_source(uri(), split); }

  // "label name" of every sample, the name as the file itself tells it.
  std::vector<std::string> samples(const Source& source) {
    std::vector<std::string> all;
    for (std::int64_t i = 0; i < source.size(); ++i) {
      source.read(i, sample_);
      const Payload& image = sample_.image();
      EXPECT_EQ(image.form, ImageForm::encoded);
      EXPECT_EQ(image.rank, 0);
      EXPECT_EQ(sample_.label(), label_of(source, i));
      all.push_back(std::to_string(sample_.label()) + " " + std::string(image.bytes.begin(), image.bytes.end()));
    }
    return all;
  }

  std::string refusal(ErrorCode code, Split split = Split::train) {
    try {
      open(split);
    } catch (const Error& error) {
      EXPECT_EQ(std::string(to_string(error.code())), to_string(code)) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.what();
    }
    return "nothing was thrown";
  }

  Sample sample_;
};

TEST_F(FolderSource, ClassesAreFoldersAndTheirImagesAreSamples) {
  two_classes();
  const auto train = open(), test = open(Split::test);
  EXPECT_EQ(train->info().num_classes, 2);
  EXPECT_EQ(stored_shape(train->info().schema).height, 0);
  EXPECT_EQ(stored_shape(train->info().schema).width, 0);
  EXPECT_EQ(stored_shape(train->info().schema).channels, 3);
  EXPECT_THAT(train->info().class_names, ElementsAre("cat", "dog"));
  EXPECT_THAT(train->info().remarks, IsEmpty());
  EXPECT_THAT(samples(*train), ElementsAre("0 train/cat/1.jpg", "0 train/cat/2.png", "1 train/dog/3.jpeg"));
  EXPECT_THAT(samples(*test), ElementsAre("0 test/cat/4.jpg", "1 test/dog/5.jpg"));
  EXPECT_EQ(train->name(2), folder_.string() + "/train/dog/3.jpeg");
  EXPECT_THROW(train->read(3, sample_), Error);
  EXPECT_THROW(train->read(-1, sample_), Error);
}

TEST_F(FolderSource, EachSplitIsTheFolderOfItsNameAndNoOther) {
  two_classes();
  EXPECT_THAT(splits_of(uri()), ElementsAre(Split::train, Split::test));
  EXPECT_THAT(refusal(ErrorCode::not_found, Split::val), HasSubstr("has no split val; there is train, test"));
  std::filesystem::rename(folder_ / "test", folder_ / "val");
  EXPECT_THAT(samples(*open(Split::val)), ElementsAre("0 test/cat/4.jpg", "1 test/dog/5.jpg"));
  EXPECT_THAT(refusal(ErrorCode::not_found, Split::test), HasSubstr("has no split test; there is train, val"));
  EXPECT_EQ(find_source(uri(), Split::test), nullptr);
  image("test/cat/6.jpg");
  image("test/dog/7.jpg");
  EXPECT_THAT(samples(*open(Split::test)), ElementsAre("0 test/cat/6.jpg", "1 test/dog/7.jpg"));
  EXPECT_THAT(samples(*open(Split::val)), ElementsAre("0 test/cat/4.jpg", "1 test/dog/5.jpg"));
  EXPECT_THAT(open(Split::test)->info().remarks, IsEmpty());
  EXPECT_THAT(splits_of(uri()), ElementsAre(Split::train, Split::val, Split::test));
  std::filesystem::remove_all(folder_ / "test");
  std::filesystem::remove_all(folder_ / "val");
  EXPECT_EQ(open()->size(), 3);  // One split alone is enough for who opens only that.
  std::filesystem::remove_all(folder_ / "train");
  EXPECT_THAT(refusal(ErrorCode::not_found), HasSubstr("has no split train; there is none (folder: splits are"));
}

TEST(Splits, AnUnknownNameIsRefusedWithTheThree) {
  for (const Choice<Split>& split : choices(Split{})) EXPECT_EQ(split_named(split.name, "split is"), split.value);
  EXPECT_EQ(error_of(ErrorCode::invalid_argument, [] { split_named("valid", "split is"); }),
            "split is \"valid\"; wanted train | val | test");
}

TEST_F(FolderSource, FoldersBelowAClassAndLinksAreFollowedInImageFoldersOrder) {
  for (const char* name :
       {"train/b/z.jpg", "train/b/a/2.JPG", "train/b/a-b/3.Png", "train/b/a/c/1.jpeg", "train/A/x.jpg"})
    image(name);
  image("elsewhere/far.jpg");
  std::filesystem::create_symlink("../../elsewhere", folder_ / "train/b/m");
  std::filesystem::create_symlink("z.jpg", folder_ / "train/b/link.jpg");
  std::filesystem::create_symlink("../elsewhere", folder_ / "train/c");
  EXPECT_THAT(samples(*open()),
              ElementsAre("0 train/A/x.jpg", "1 train/b/z.jpg", "1 train/b/z.jpg", "1 train/b/a/2.JPG",
                          "1 train/b/a-b/3.Png", "1 train/b/a/c/1.jpeg", "1 elsewhere/far.jpg", "2 elsewhere/far.jpg"));
}

TEST_F(FolderSource, NamesThatAreNotTextWorkAndAreShownEscaped) {
  image("train/caf\xe9/\xff\n.jpg");
  const auto source = open();
  EXPECT_THAT(samples(*source), ElementsAre("0 train/caf\xe9/\xff\n.jpg"));
  EXPECT_THAT(source->info().class_names, ElementsAre("caf\\xe9"));
  EXPECT_EQ(source->name(0), folder_.string() + "/train/caf\\xe9/\\xff\\x0a.jpg");
}

TEST_F(FolderSource, WhatIsNoImageIsLeftOutWithARemarkEach) {
  two_classes();
  image("train/notes.txt");
  image("train/cat/.DS_Store");
  image("train/cat/old/list.gif");
  write("train/cat/0.jpg", "");
  std::filesystem::create_symlink("gone.jpg", folder_ / "train/dog/link.jpg");
  ASSERT_EQ(mkfifo((folder_ / "train/dog/pipe.jpg").c_str(), 0600), 0);
  std::filesystem::create_directory(folder_ / "train/dog/folder.jpg");
  const auto source = open();
  EXPECT_EQ(source->size(), 4);  // The empty one fails when it is read, by name.
  EXPECT_THAT(source->info().remarks,
              ElementsAre(AllOf(HasSubstr("beside the class folders: 1; "), HasSubstr("/train/notes.txt")),
                          AllOf(HasSubstr("not .jpg, .jpeg or .png: 2; "), HasSubstr("/train/cat/.DS_Store")),
                          AllOf(HasSubstr("lead nowhere: 1; "), HasSubstr("/train/dog/link.jpg")),
                          AllOf(HasSubstr("neither files nor folders: 1; "), HasSubstr("/train/dog/pipe.jpg")),
                          AllOf(HasSubstr("Images of 0 bytes: 1; "), HasSubstr("/train/cat/0.jpg"))));
}

TEST_F(FolderSource, LoopsOfLinksEndAndAreRemarked) {
  two_classes();
  std::filesystem::create_symlink(".", folder_ / "train/cat/self");
  std::filesystem::create_symlink("..", folder_ / "train/cat/up");
  std::filesystem::create_symlink("../..", folder_ / "train/dog/top");
  std::filesystem::create_directories(folder_ / "train/dog/a/b");
  std::filesystem::create_symlink("../..", folder_ / "train/dog/a/b/again");
  const auto source = open();
  EXPECT_EQ(source->size(), 3);
  EXPECT_THAT(source->info().remarks,
              ElementsAre(AllOf(HasSubstr("loop of links: 4; "), HasSubstr("/train/cat/self"))));
}

// Each level has two ways to the next: 2^40 ways in all.
TEST_F(FolderSource, AMazeOfLinksIsWalkedOnce) {
  std::filesystem::create_directories(folder_ / "train/cat");
  for (int level = 0; level < 40; ++level) {
    const std::string here = "maze/" + std::to_string(level), next = "../" + std::to_string(level + 1);
    image(here + "/x.jpg");
    std::filesystem::create_symlink(next, folder_ / here / "left");
    std::filesystem::create_symlink(next, folder_ / here / "right");
  }
  image("maze/40/x.jpg");
  std::filesystem::create_symlink("../../maze/20", folder_ / "train/cat/in");
  EXPECT_EQ(open()->size(), 21);
}

TEST_F(FolderSource, AClassWithoutImagesIsNamed) {
  two_classes();
  std::filesystem::create_directories(folder_ / "train/eel/deep");
  image("train/eel/deep/readme.txt");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data),
              AllOf(HasSubstr(folder_.string() + "/train/eel has no images"), HasSubstr(".jpg")));
}

TEST_F(FolderSource, ASplitWithoutClassesIsRefused) {
  std::filesystem::create_directories(folder_ / "train");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("/train has no class folders"));
  image("train/1.jpg");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr("/train has no class folders"));
}

TEST_F(FolderSource, SplitsWithDifferentClassesAreRefusedByName) {
  two_classes();
  image("test/eel/6.jpg");
  const std::string train = folder_.string() + "/train", test = folder_.string() + "/test";
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr(test + " has eel, " + train + " has not"));
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, Split::test), HasSubstr(test + " has eel, " + train + " has not"));
  std::filesystem::rename(folder_ / "test/eel", folder_ / "train/ant");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data, Split::test), HasSubstr(train + " has ant, " + test + " has not"));
  std::filesystem::rename(folder_ / "train/ant", folder_ / "test/ant");
  std::filesystem::rename(folder_ / "test", folder_ / "val");
  EXPECT_THAT(refusal(ErrorCode::corrupt_data), HasSubstr(folder_.string() + "/val has ant, " + train + " has not"));
}

TEST_F(FolderSource, AFolderThatCannotBeReadIsNamed) {
  two_classes();
  std::filesystem::permissions(folder_ / "train/dog", std::filesystem::perms::none);
  const Unprivileged guard;
  EXPECT_THAT(refusal(ErrorCode::io), AllOf(HasSubstr("/train/dog: "), HasSubstr("Permission denied")));
}

TEST_F(FolderSource, AFileThatChangesAfterTheFolderWasListedIsOneError) {
  two_classes();
  const auto source = open();
  const auto refusal_of = [&](std::int64_t index) -> std::string {
    try {
      source->read(index, sample_);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(source->name(index)));
      return std::string(to_string(error.code())) + " " + error.what();
    }
    return "nothing was thrown";
  };
  std::filesystem::remove(folder_ / "train/cat/1.jpg");
  write("train/cat/2.png", "longer than it was before");
  EXPECT_THAT(refusal_of(0), testing::StartsWith("not_found"));
  EXPECT_THAT(refusal_of(1), AllOf(testing::StartsWith("corrupt_data"), HasSubstr("has 25 bytes; it had 15")));
  EXPECT_EQ(read_sample(*source, 2).label(), 1);
}

TEST_F(FolderSource, TheFingerprintIsOfNamesSizesAndLabels) {
  two_classes();
  const std::uint64_t before = open()->info().fingerprint;
  EXPECT_EQ(open()->info().fingerprint, before);
  EXPECT_NE(open(Split::test)->info().fingerprint, before);
  write("train/cat/1.jpg", "another size");
  EXPECT_NE(open()->info().fingerprint, before);
  image("train/cat/1.jpg");
  EXPECT_EQ(open()->info().fingerprint, before);
  std::filesystem::rename(folder_ / "train/cat/1.jpg", folder_ / "train/cat/0.jpg");
  EXPECT_NE(open()->info().fingerprint, before);
  std::filesystem::rename(folder_ / "train/cat/0.jpg", folder_ / "train/dog/1.jpg");
  EXPECT_NE(open()->info().fingerprint, before);
  std::filesystem::rename(folder_ / "train/dog/1.jpg", folder_ / "train/cat/1.jpg");
  const auto moved = folder_ / "moved";
  std::filesystem::create_directory(moved);
  std::filesystem::rename(folder_ / "train", moved / "train");
  EXPECT_EQ(open_source("folder:" + moved.string(), Split::train)->info().fingerprint, before);
}

TEST_F(FolderSource, AHundredThousandFilesAreListed) {
  constexpr int kFiles = 100'000;
  std::filesystem::create_directories(folder_ / "train/all");
  const std::string stem = (folder_ / "train/all/image-").string();
  // Ten files of many names each: making a file for each takes minutes on a disk that is busy.
  for (int i = 0; i < 10; ++i) std::ofstream(folder_ / std::to_string(i)).put('x');
  for (int i = 0; i < kFiles; ++i) {
    std::filesystem::create_hard_link(folder_ / std::to_string(i % 10), fmt::format("{}{:06d}.jpg", stem, i));
  }
  const auto source = open();
  EXPECT_EQ(source->size(), kFiles);
  EXPECT_EQ(source->name(kFiles - 1), stem + "099999.jpg");
  EXPECT_EQ(read_sample(*source, kFiles / 2).image().bytes.size(), 1U);
}

}  // namespace
}  // namespace headrace
