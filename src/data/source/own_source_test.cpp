// A source of one's own, through the public header alone.
#include <gtest/gtest.h>
#include <headrace/loader.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace {

// A checkerboard a sample; the label is the size of its squares.
class Checkerboards : public headrace::Source {
 public:
  std::int64_t size() const override { return 12; }
  std::int64_t num_classes() const override { return 5; }
  int height() const override { return 8; }
  int width() const override { return 8; }
  int channels() const override { return 1; }
  void read(std::int64_t index, headrace::Sample& sample) const override {
    std::vector<std::uint8_t>& buffer = sample.buffer(0);
    buffer.resize(64);
    const std::int64_t square = label(index);
    for (std::int64_t i = 0; i < 64; ++i) {
      buffer[static_cast<std::size_t>(i)] = (i / 8 / square + i % 8 / square) % 2 == 0 ? 0 : 255;
    }
    sample.image().set_pixels(buffer, 8, 8, 1);
    sample.set_label(square);
  }
  std::int64_t label(std::int64_t index) const override { return 1 + index % 4; }
  std::string sample_name(std::int64_t index) const override { return "board " + std::to_string(index); }
  std::uint64_t fingerprint() const override { return 12; }
};

TEST(OwnSource, IsAllThatALoaderNeeds) {
  headrace::DataOptions options;
  options.batch_size = 4;
  options.num_workers = 2;
  headrace::Loader loader{std::make_shared<Checkerboards>(), options, /*seed=*/1, /*training=*/false};
  headrace::Epoch epoch = loader.epoch(0);
  std::int64_t samples = 0;
  while (const auto batch = epoch.next()) {
    const auto* pixels = reinterpret_cast<const float*>(batch->field("image").bytes.data());
    const auto* labels = reinterpret_cast<const std::int64_t*>(batch->field("labels").bytes.data());
    for (std::int64_t i = 0; i < batch->size(); ++i, ++samples) {
      EXPECT_EQ(labels[i], 1 + samples % 4);
      EXPECT_EQ(pixels[i * 64], 0.0F);
      EXPECT_EQ(pixels[i * 64 + labels[i]], 1.0F) << "the second square of the first row";
    }
  }
  EXPECT_EQ(samples, 12);
}

}  // namespace
