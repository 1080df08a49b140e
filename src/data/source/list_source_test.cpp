// Images by a list of their paths.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <algorithm>

#include "core/base/files.h"
#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/read_sample.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class ListSource : public ScratchFolder {
 protected:
  std::shared_ptr<const Source> open(const std::string& lines, Split split = Split::train) const {
    return open_source("list:" + write("list.csv", lines).string(), split);
  }
  std::string refusal(const std::string& lines) const {
    return error_of(ErrorCode::corrupt_data, [&] { open(lines); });
  }
  static std::vector<std::string> names(const Source& source) {
    std::vector<std::string> all;
    for (std::int64_t i = 0; i < source.size(); ++i) all.push_back(stored_name_of(source, i));
    return all;
  }
};

TEST_F(ListSource, OfAllFilesOfAFolderGivesItsBatches) {
  const TinyImages images{{.classes = 3, .count = 8, .height = 60, .width = 70}};
  const std::shared_ptr<const Source> folder = open_source(images.uri(), Split::train);
  std::string lines = "path,label\n";
  for (std::int64_t i = 0; i < folder->size(); ++i) {
    lines += fmt::format("{},{}\n", folder->name(i),
                         folder->info().class_names[static_cast<std::size_t>(label_of(*folder, i))]);
  }
  const auto list = open(lines);
  EXPECT_EQ(list->info().class_names, folder->info().class_names);
  DataOptions options = options_of(5, 2);
  options.transform.size = 24;
  options.transform.crop = Crop::random_resized;
  Loader one{folder, options, 3, true}, other{list, options, 3, true};
  EXPECT_EQ(digests(other.epoch(0)), digests(one.epoch(0)));
}

TEST_F(ListSource, LinesAreSeparatedByTabsCommasOrTheLastSpace) {
  for (const char* name : {"a b.jpg", "c,d.jpg", "e\"f.jpg", "g.png"}) write(std::string("x/") + name, "some bytes");
  const auto source = open(
      "\xEF\xBB\xBFx/a b.jpg 2\r\n\n# said by nobody\n\"x/c,d.jpg\",0\n\"x/e\"\"f.jpg\",3,train\nx/g.png\t1\n"
      "x/g.png\t7\tval\nx/a b.jpg,1,test");
  EXPECT_THAT(names(*source), ElementsAre("2/x/a b.jpg", "0/x/c,d.jpg", "3/x/e\"f.jpg", "1/x/g.png"));
  EXPECT_EQ(source->info().num_classes, 8);
  EXPECT_TRUE(source->info().class_names.empty());
  EXPECT_EQ(label_of(*source, 2), 3);
  const auto test = open("x/g.png\t1\nx/g.png\t7\tval\nx/a b.jpg,1,test\n", Split::test);
  EXPECT_THAT(names(*test), ElementsAre("1/x/a b.jpg"));
  const auto val = open("x/g.png\t1\nx/g.png\t7\tval\nx/a b.jpg,1,test\n", Split::val);
  EXPECT_THAT(names(*val), ElementsAre("7/x/g.png"));
  EXPECT_EQ(val->info().num_classes, 8);
}

TEST_F(ListSource, NamesOfClassesAreCountedInPythonsOrder) {
  for (const char* name : {"1.jpg", "2.jpg", "3.jpg"}) write(name, "some bytes");
  const auto source = open("1.jpg zebra\n2.jpg 10\n3.jpg ant\n");
  EXPECT_THAT(source->info().class_names, ElementsAre("10", "ant", "zebra"));
  EXPECT_EQ(label_of(*source, 0), 2);
  EXPECT_EQ(label_of(*source, 1), 0);
}

TEST_F(ListSource, BadLinesAreNamedByNumber) {
  write("1.jpg", "some bytes");
  fs::create_directory(folder_ / "folder");
  EXPECT_THAT(refusal("1.jpg,cat\nabsent.jpg,cat\n1.jpg,dog\n1.jpg\n"),
              AllOf(HasSubstr("list.csv: line 4: 1 fields"), HasSubstr("also bad: line 2")));
  EXPECT_THAT(refusal("1.jpg,cat\nabsent.jpg,cat\n"), HasSubstr("absent.jpg: No such file"));
  EXPECT_THAT(refusal("1.jpg,cat\n\n1.jpg,cat\n"), HasSubstr("line 3: 1.jpg with this label is in the list already"));
  EXPECT_THAT(refusal("1.jpg,\n"), HasSubstr("line 1: no label"));
  EXPECT_THAT(refusal(",cat\n"), HasSubstr("line 1: no path"));
  EXPECT_THAT(refusal("\"1.jpg,cat\n"), HasSubstr("line 1: a quote is not closed"));
  EXPECT_THAT(refusal("1.jpg,cat,holdout\n"), HasSubstr("split 'holdout'; wanted train, val or test"));
  EXPECT_THAT(refusal("folder,cat\n"), HasSubstr("is not a regular file"));
  EXPECT_THAT(refusal(std::string("1.jpg\0,cat\n", 11)), HasSubstr("line 1: a byte 0"));
  std::string many;
  for (int i = 0; i < 30; ++i) many += "x\n";
  EXPECT_THAT(refusal(many), AllOf(HasSubstr("line 2, 3, 4, 5, 6, 7, 8, 9, 10 and 20 more"), Not(HasSubstr("11"))));
}

TEST_F(ListSource, WithoutImagesOrFileIsNotFound) {
  for (const char* nothing : {"", "# nothing\n", "path,label\n"}) {
    error_of(ErrorCode::not_found, [&] { open(nothing); });
  }
  write("1.jpg", "some bytes");
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { open("1.jpg,cat\n", Split::test); }),
              HasSubstr("has no split test; there is train"));
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { open("1.jpg,cat,test\n", Split::val); }),
              HasSubstr("has no split val; there is test"));
  EXPECT_THAT(error_of(ErrorCode::not_found, [&] { open_source("list:" + (folder_ / "none").string(), Split::train); }),
              HasSubstr("none"));
}

// Whatever the paths are, what is unpacked lies in a folder of its class.
TEST_F(ListSource, IsPackedAndUnpackedToAFolderOfItsClasses) {
  const TinyImages images{{.classes = 2, .count = 3}};
  const fs::path image = images.folder() / "train/a/00001.jpg";
  fs::create_directory(folder_ / "lists");
  fs::copy_file(image, folder_ / "beside.jpg");
  const fs::path list =
      write("lists/all.txt", "../beside.jpg dog\n" + image.string() + " cat\n" + image.string() + " dog\n");
  const auto always = [](std::int64_t, std::int64_t) { return true; };
  ASSERT_TRUE(write_pack({.source = "list:" + list.string(), .out = folder_ / "list.pack"}, always));
  ASSERT_EQ(unpack(folder_ / "list.pack", folder_ / "again", always), 3);
  EXPECT_EQ(read_file(folder_ / "again/train/dog/beside.jpg", 1 << 20), read_file(image, 1 << 20));
  EXPECT_EQ(read_file(folder_ / "again/train/cat" / image.relative_path(), 1 << 20), read_file(image, 1 << 20));
  EXPECT_EQ(open_source("folder:" + (folder_ / "again").string(), Split::train)->info().class_names,
            (std::vector<std::string>{"cat", "dog"}));
}

}  // namespace
}  // namespace headrace
