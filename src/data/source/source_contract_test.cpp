// What every source promises of its capabilities: those of all schemes, parts of them, and what a loader asks of them.
#include "data/source/source_contract.h"

#include <headrace/loader.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/loader/testing.h"
#include "data/pack/pack_build.h"
#include "data/source/fields_source.h"
#include "data/source/held_out.h"
#include "data/source/sources.h"
#include "data/store/file_store.h"
#include "data/store/scratch_folder.h"
#include "media/codec/tiny_images.h"

namespace headrace {
namespace {

constexpr TinyImages::Shape kShape{.classes = 3, .count = 9};

class SourceContract : public ScratchFolder {
 protected:
  using Sources = std::map<std::string, std::shared_ptr<const Source>>;

  std::shared_ptr<const Source> pack_of(const std::string& name, const std::shared_ptr<const Source>& source,
                                        PackForm form) const {
    const auto path = folder_ / (name + ".pack");
    const auto written = write_pack({.source = name, .out = path, .form = form}, {{Split::train, source}},
                                    [](std::int64_t, std::int64_t) { return true; });
    EXPECT_TRUE(written.has_value());
    return open_source("pack:" + path.string(), Split::train);
  }

  // Of samples of images every scheme, and of packs every form.
  Sources every_source() const {
    const std::string bytes(std::size_t{6} * 3 * 4, '\x2a'), header("\0\0\x08\x03\0\0\0\x06\0\0\0\x03\0\0\0\x04", 16);
    write("idx/train-images-idx3-ubyte", header + bytes);
    write("idx/train-labels-idx1-ubyte", std::string("\0\0\x08\x01\0\0\0\x06\0\1\2\0\1\2", 14));
    std::string lines;
    for (int i = 0; i < 9; ++i) lines += fmt::format("{}/train/b/{:05d}.jpg,{}\n", images_.folder().string(), i, i % 4);
    Sources all;
    all["folder"] = open_source(images_.uri(), Split::train);
    all["idx"] = open_source("idx:" + (folder_ / "idx").string(), Split::train);
    all["list"] = open_source("list:" + write("list.csv", lines).string(), Split::train);
    all["pack of files"] = pack_of("files", all["folder"], PackForm::stored);
    all["pack of pixels"] = pack_of("pixels", all["idx"], PackForm::stored);
    all["pack of rows"] = pack_of("rows", all["folder"], PackForm::raw);
    all["pack of compressed rows"] = pack_of("lz4", all["folder"], PackForm::lz4);
    const Schema boxes{{{.name = "image", .shape = {5, 4, 3}, .encoding = Encoding::image},
                        {.name = "boxes", .dtype = DType::f32, .shape = {kRagged, 4}},
                        {.name = "labels", .dtype = DType::i64}}};
    all["pack of fields"] = pack_of("fields", std::make_shared<FieldsSource>(boxes, 20), PackForm::stored);
    return all;
  }

  const TinyImages images_{kShape};
};

TEST_F(SourceContract, CapabilitiesAgreeWithReading) {
  for (const auto& [name, source] : every_source()) {
    SCOPED_TRACE(name);
    ASSERT_GT(source->size(), 0);
    expect_capabilities_agree(*source);
  }
}

// A part can what its whole can, and all of it is of its own samples.
TEST_F(SourceContract, APartHasTheCapabilitiesOfItsWhole) {
  for (const auto& [name, source] : every_source()) {
    SCOPED_TRACE(name);
    const auto part = part_of(source, 0.4, 3, Split::val);
    expect_capabilities_agree(*part);
    const Capabilities whole = source->capabilities(), can = part->capabilities();
    EXPECT_EQ(can.rows == nullptr, whole.rows == nullptr);
    EXPECT_EQ(can.sizes == nullptr, whole.sizes == nullptr);
    EXPECT_EQ(can.known == nullptr, whole.known == nullptr);
    EXPECT_EQ(can.expecting == nullptr, whole.expecting == nullptr);
    EXPECT_EQ(can.names == nullptr, whole.names == nullptr);
    EXPECT_EQ(can.interruptible, whole.interruptible);
    EXPECT_EQ(can.store, whole.store);
  }
}

// Files, and the keys that were expected of them.
class Announced final : public Store {
 public:
  explicit Announced(const std::filesystem::path& root) : files_(root) {}
  std::span<const std::uint8_t> get(const char* key, const ByteRange& range,
                                    std::vector<std::uint8_t>& buffer) const override {
    return files_.get(key, range, buffer);
  }
  std::int64_t size(const char* key) const override { return files_.size(key); }
  void expect(std::span<const char* const> keys) const override {
    const std::lock_guard lock(mutex_);
    expected.insert(expected.end(), keys.begin(), keys.end());
  }
  std::string text_of(const char* key) const override { return files_.text_of(key); }

  mutable std::vector<std::string> expected;  // Guarded by the mutex.

 private:
  const FileStore files_;
  mutable std::mutex mutex_;
};

struct AnnouncedPart {
  std::shared_ptr<const Source> whole, part;
  const Announced* store;  // Of both.
};

AnnouncedPart announced_part(const std::filesystem::path& folder) {
  const Announced* store = nullptr;
  const std::shared_ptr<const Source> whole =
      detail::open_image_folder(folder, Split::train, [&store](const std::filesystem::path& root) {
        auto made = std::make_unique<Announced>(root);
        store = made.get();
        return made;
      });
  return {whole, part_of(whole, 0.2, 3, Split::train), store};
}

TEST_F(SourceContract, ALoaderTellsEachSampleOfABatchOnceBeforeItIsRead) {
  for (const std::int64_t threads : {0, 1, 3}) {
    const auto [whole, part, store] = announced_part(images_.folder());
    DataOptions options = options_of(8, threads);
    options.transform.size = 24;
    Loader loader{part, options, 5, true};
    std::vector<std::string> wanted;
    for (const std::int64_t index : order(loader.epoch(0))) {
      wanted.push_back(part->capabilities().names->stored_name(index));
    }
    std::vector<std::string> told = store->expected;
    if (threads > 1) {  // Batches are told of as they are begun, by any thread.
      std::sort(wanted.begin(), wanted.end());
      std::sort(told.begin(), told.end());
    }
    EXPECT_EQ(told, wanted) << threads << " threads";
  }
}

// More than a source passes on at once.
TEST_F(SourceContract, HintsOfLargeBatchesAreWhole) {
  const auto [whole, part, store] = announced_part(images_.folder());
  std::vector<std::string> wanted;
  for (const Source* source : {whole.get(), part.get()}) {
    std::vector<std::int64_t> indices;
    for (std::int64_t i = 0; i < 150; ++i) indices.push_back(i % source->size());
    source->capabilities().expecting->expect(indices);
    for (const std::int64_t index : indices) wanted.push_back(source->capabilities().names->stored_name(index));
  }
  EXPECT_EQ(store->expected, wanted);
}

}  // namespace
}  // namespace headrace
