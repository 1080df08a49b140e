// Photographs of 375 x 500, the size most of ImageNet has: decoding the whole or a crop's box, resizing it, and both.
// items_per_second are images; medians and spread of repeated runs come from Google Benchmark's aggregates.
//   image_bench [--set=plain]    the instruction set of the resize and the decoder; without: the best
//   image_bench --photos=photos --benchmark_filter=photos --benchmark_enable_random_interleaving=true
//                                the same photographs and crops (those of training) by libjpeg-turbo and by our own
//                                code
#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/fail.h"
#include "core/base/kernel_sets.h"
#include "data/transform/crop.h"
#include "data/transform/resize.h"
#include "data/transform/shorthand.h"
#include "media/codec/baseline_reader.h"
#include "media/codec/decode.h"
#include "media/codec/jpeg_reader.h"
#include "media/codec/test_images.h"

namespace {

using namespace headrace;
using namespace headrace::codec;
using namespace headrace::transform;

constexpr int kHeight = 375, kWidth = 500, kFiles = 16, kCrops = 64;

const std::vector<Bytes>& files(bool progressive) {
  const auto make = [](const JpegForm& form) {
    std::vector<Bytes> made;
    for (unsigned seed = 0; seed < kFiles; ++seed) made.push_back(jpeg_of(photograph(kHeight, kWidth, 3, seed), form));
    return made;
  };
  static const std::array<std::vector<Bytes>, 2> all{make({}), make({.progressive = true})};
  return all[progressive ? 1 : 0];
}

// Crops as training draws them: random_resized with its default scale and ratio.
std::vector<CropWindow> drawn_crops(int size) {
  TransformOptions options;
  options.size = size;
  options.crop = Crop::random_resized;
  std::vector<CropWindow> crops;
  for (int i = 0; i < kCrops; ++i) {
    SampleRandom random{1, 0, i};
    crops.push_back(choose_crop(crop_of(options, /*training=*/true), kHeight, kWidth, random));
  }
  return crops;
}

Box box_of(const CropWindow& crop) {
  const Stretch rows = needed(crop.vertical), columns = needed(crop.horizontal);
  return {rows.begin, columns.begin, rows.size, columns.size};
}

std::size_t bytes_of(const Box& box) {
  return static_cast<std::size_t>(box.height) * static_cast<std::size_t>(box.width) * 3;
}

void decode_whole(benchmark::State& state, bool progressive) {
  const std::vector<Bytes>& made = files(progressive);
  Decoder decoder;
  Bytes out(bytes_of({0, 0, kHeight, kWidth}));
  std::size_t turn = 0;
  for (auto _ : state) {
    decoder.open(made[turn++ % kFiles], 3);
    decoder.decode({0, 0, kHeight, kWidth}, out);
  }
  state.SetItemsProcessed(state.iterations());
}

void decode_header(benchmark::State& state) {
  const std::vector<Bytes>& made = files(false);
  Decoder decoder;
  std::size_t turn = 0;
  for (auto _ : state) decoder.open(made[turn++ % kFiles], 3);
  state.SetItemsProcessed(state.iterations());
}

void decode_region(benchmark::State& state, bool progressive) {
  const std::vector<CropWindow> crops = drawn_crops(224);
  const std::vector<Bytes>& made = files(progressive);
  Decoder decoder;
  Bytes out(bytes_of({0, 0, kHeight, kWidth}));
  std::size_t turn = 0;
  for (auto _ : state) {
    const Box box = box_of(crops[turn % kCrops]);
    decoder.open(made[turn++ % kFiles], 3);
    decoder.decode(box, std::span{out}.first(bytes_of(box)));
  }
  state.SetItemsProcessed(state.iterations());
}

void resize_crops(benchmark::State& state) {
  const int size = static_cast<int>(state.range(0));
  const std::vector<CropWindow> crops = drawn_crops(size);
  const Image image = photograph(kHeight, kWidth, 3, 1);  // Its first bytes serve as any box's pixels.
  Resizer resizer;
  Bytes out(bytes_of({0, 0, size, size}));
  std::size_t turn = 0;
  for (auto _ : state) {
    const CropWindow& crop = crops[turn++ % kCrops];
    resizer.resize(std::span{image.pixels}.first(bytes_of(box_of(crop))), crop.vertical, crop.horizontal, 3, out);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
}

void decode_region_and_resize(benchmark::State& state) {
  const int size = static_cast<int>(state.range(0));
  const std::vector<CropWindow> crops = drawn_crops(size);
  const std::vector<Bytes>& made = files(false);
  Decoder decoder;
  Resizer resizer;
  Bytes pixels(bytes_of({0, 0, kHeight, kWidth})), out(bytes_of({0, 0, size, size}));
  std::size_t turn = 0;
  for (auto _ : state) {
    const CropWindow& crop = crops[turn % kCrops];
    const Box box = box_of(crop);
    const auto part = std::span{pixels}.first(bytes_of(box));
    decoder.open(made[turn++ % kFiles], 3);
    decoder.decode(box, part);
    resizer.resize(part, crop.vertical, crop.horizontal, 3, out);
  }
  state.SetItemsProcessed(state.iterations());
}

// Every n-th JPEG of a folder that our own code decodes, and a crop of each, as training draws it.
struct Photos {
  static constexpr std::size_t kMost = 500;
  std::vector<Bytes> files;
  std::vector<Box> whole, crops;
  std::vector<EntropyIndex> indices;

  explicit Photos(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.path().extension() == ".jpg") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    TransformOptions options;
    options.size = 224;
    options.crop = Crop::random_resized;
    const CropStage crop = crop_of(options, /*training=*/true);
    codec::detail::BaselineReader reader;
    const std::size_t step = std::max<std::size_t>(paths.size() / kMost, 1);
    for (std::size_t i = 0; i < paths.size(); i += step) {
      std::ifstream stream(paths[i], std::ios::binary);
      Bytes file{std::istreambuf_iterator<char>(stream), {}};
      const auto info = reader.open(file, 3);
      auto index = index_entropy(file);
      if (!info || !index) continue;
      indices.push_back(std::move(*index));
      SampleRandom random{1, 0, static_cast<std::int64_t>(i)};
      crops.push_back(box_of(choose_crop(crop, info->height, info->width, random)));
      whole.push_back({0, 0, info->height, info->width});
      check_pixels(file, reader);
      files.push_back(std::move(file));
    }
    if (files.empty()) fail(ErrorCode::not_found, "image_bench: no baseline JPEG in {}", folder.string());
  }

 private:
  // A faster decoder of other pixels would be no comparison.
  void check_pixels(const Bytes& file, codec::detail::BaselineReader& reader) const {
    codec::detail::JpegReader libjpeg;
    for (const Box& box : {whole.back(), crops.back()}) {
      Bytes wanted(bytes_of(box)), plain(wanted), by_index(wanted);
      libjpeg.open(file, 3);
      libjpeg.decode(box, wanted);
      const bool decoded = reader.decode(box, plain) && reader.decode(box, by_index, &indices.back());
      if (!decoded || plain != wanted || by_index != wanted) fail(ErrorCode::corrupt_data, "image_bench: other pixels");
    }
  }
};

// All photographs an iteration; of our own code those that it leaves to libjpeg are an error.
template <class Reader>
void decode_photos(benchmark::State& state, const Photos& photos, const std::vector<Box>& boxes) {
  Reader reader;
  Bytes out;
  for (auto _ : state) {
    for (std::size_t i = 0; i < photos.files.size(); ++i) {
      out.resize(std::max(out.size(), bytes_of(boxes[i])));
      reader.open(photos.files[i], 3);
      const auto pixels = std::span{out}.first(bytes_of(boxes[i]));
      if constexpr (std::is_same_v<Reader, codec::detail::BaselineReader>) {
        if (!reader.decode(boxes[i], pixels)) state.SkipWithError("not decoded");
      } else {
        reader.decode(boxes[i], pixels);
      }
    }
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(photos.files));
}

void decode_photos_by_index(benchmark::State& state, const Photos& photos, const std::vector<Box>& boxes) {
  codec::detail::BaselineReader reader;
  Bytes out;
  for (auto _ : state) {
    for (std::size_t i = 0; i < photos.files.size(); ++i) {
      out.resize(std::max(out.size(), bytes_of(boxes[i])));
      reader.open(photos.files[i], 3);
      const auto pixels = std::span{out}.first(bytes_of(boxes[i]));
      if (!reader.decode(boxes[i], pixels, &photos.indices[i])) state.SkipWithError("not decoded");
    }
  }
  state.SetItemsProcessed(state.iterations() * std::ssize(photos.files));
}

void index_photos(benchmark::State& state, const Photos& photos, const std::vector<Box>&) {
  std::size_t size = 0, files = 0;
  for (auto _ : state) {
    for (const Bytes& file : photos.files) {
      size += serialise(index_entropy(file).value()).size();
      files += file.size();
    }
  }
  state.counters["of_file"] = static_cast<double>(size) / static_cast<double>(files);
  state.SetItemsProcessed(state.iterations() * std::ssize(photos.files));
}

void add_photos(const std::filesystem::path& folder) {
  static const Photos photos{folder};
  const auto add = [](const char* name, auto run, const std::vector<Box>& boxes) {
    benchmark::RegisterBenchmark(name, run, photos, boxes)
        ->Repetitions(9)
        ->ReportAggregatesOnly(true)
        ->Iterations(1)
        ->Unit(benchmark::kMillisecond);
  };
  add("photos/libjpeg/whole", decode_photos<codec::detail::JpegReader>, photos.whole);
  add("photos/libjpeg/crop", decode_photos<codec::detail::JpegReader>, photos.crops);
  add("photos/ours/whole", decode_photos<codec::detail::BaselineReader>, photos.whole);
  add("photos/ours/crop", decode_photos<codec::detail::BaselineReader>, photos.crops);
  add("photos/ours/crop_by_index", decode_photos_by_index, photos.crops);
  add("photos/ours/make_index", index_photos, photos.whole);
}

void repeat(benchmark::internal::Benchmark* bench) {
  bench->Repetitions(9)->ReportAggregatesOnly(true)->MinTime(0.05);
}

// Every crop as often as any other: their cost differs by more than what is to be seen.
void repeat_crops(benchmark::internal::Benchmark* bench) {
  bench->Repetitions(9)->ReportAggregatesOnly(true)->Iterations(2 * kCrops);
}

BENCHMARK(decode_header)->Apply(repeat);
BENCHMARK_CAPTURE(decode_whole, baseline, false)->Apply(repeat);
BENCHMARK_CAPTURE(decode_whole, progressive, true)->Apply(repeat);
BENCHMARK_CAPTURE(decode_region, baseline, false)->Apply(repeat_crops);
BENCHMARK_CAPTURE(decode_region, progressive, true)->Apply(repeat_crops);
BENCHMARK(resize_crops)->Arg(64)->Arg(224)->Apply(repeat);
BENCHMARK(decode_region_and_resize)->Arg(64)->Arg(224)->Apply(repeat_crops);

// The text behind `--name=` when that is the first argument, which is then taken away.
std::string taken(std::string_view name, int& argc, char**& argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first.substr(0, name.size()) != name) return {};
  argv[1] = argv[0];
  --argc;
  ++argv;
  return std::string(first.substr(name.size()));
}

}  // namespace

int main(int argc, char** argv) {
  if (const std::string set = taken("--set=", argc, argv); !set.empty()) use_kernel_set(set);
  if (const std::string folder = taken("--photos=", argc, argv); !folder.empty()) add_photos(folder);
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
