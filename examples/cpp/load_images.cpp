// Loads images in shuffled batches on two threads, and stops and goes on in the middle of an epoch. No LibTorch.
//
//   load_images folder:photos        DIR/train/CLASS/*.jpg, as torchvision's ImageFolder
//   load_images idx:/usr/share/datasets/fashion-mnist
#include <headrace/loader.h>

#include <cstdio>
#include <exception>

namespace hr = headrace;

namespace {

// Mean of all pixels; a batch's image is (N, C, H, W) of float32 here.
double mean_of(const hr::Batch& batch) {
  const auto bytes = batch.field("image").bytes;
  const auto* pixels = reinterpret_cast<const float*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof(float);
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += pixels[i];
  return sum / static_cast<double>(count);
}

}  // namespace

int main(int argc, char** argv) try {
  const char* data = argc > 1 ? argv[1] : "idx:/usr/share/datasets/fashion-mnist";
  hr::DataOptions options{.batch_size = 64, .num_workers = 2};
  options.transform = {.size = 64, .crop = hr::Crop::random_resized, .flip_probability = 0.5};
  hr::Loader loader{hr::open_source(data, hr::Split::train), options, /*seed=*/1, /*training=*/true};

  hr::Epoch epoch = loader.next_epoch();
  std::printf("%lld batches of %d x %d x %d\n", static_cast<long long>(epoch.batches()), loader.channels(),
              loader.height(), loader.width());
  for (int i = 0; i < 2; ++i) {
    if (const auto batch = epoch.next()) std::printf("batch %d: mean %.4f\n", i, mean_of(*batch));
  }
  const hr::LoaderState state = loader.state();  // Plain values, to be kept with a checkpoint.

  hr::Loader other{hr::open_source(data, hr::Split::train), options, /*seed=*/1, /*training=*/true};
  other.restore(state);
  const auto here = epoch.next(), there = other.next_epoch().next();
  std::printf("batch 2: mean %.4f, in another loader that goes on there %.4f\n", mean_of(*here), mean_of(*there));
} catch (const std::exception& error) {
  std::fprintf(stderr, "load_images: %s\n", error.what());
  return 1;
}
