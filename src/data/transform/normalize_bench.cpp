// Nanoseconds an image: medians and spread of repeated runs come from Google Benchmark's aggregates.
#include "data/transform/normalize.h"

#include <benchmark/benchmark.h>

#include <array>
#include <vector>

namespace {

using headrace::transform::NormalizeGeometry;

void time_normalize(benchmark::State& state, const NormalizeGeometry& geometry) {
  const auto size = static_cast<std::size_t>(geometry.height) * geometry.width * geometry.channels;
  // Eight images in turn, so that the branch predictor and the caches see more than one.
  std::vector<std::uint8_t> pixels(size * 8);
  for (std::size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<std::uint8_t>(i * 2654435761U >> 13);
  std::vector<float> out(size);
  const auto table = headrace::transform::make_normalize_table(std::array{0.286}, std::array{0.353}, geometry.channels);
  const headrace::transform::PixelForm form{headrace::PixelType::f32, headrace::PixelLayout::nchw, &table};
  std::size_t turn = 0;
  for (auto _ : state) {
    headrace::transform::normalize(std::span{pixels}.subspan(size * (turn++ % 8), size), geometry, form,
                                   std::as_writable_bytes(std::span{out}));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(size * (1 + sizeof(float))));
}

void repeat(benchmark::internal::Benchmark* bench) {
  bench->Repetitions(9)->ReportAggregatesOnly(true)->MinTime(0.05);
}

BENCHMARK_CAPTURE(time_normalize, gray_28_plain, NormalizeGeometry{28, 28, 1, 0, 0, false})->Apply(repeat);
BENCHMARK_CAPTURE(time_normalize, gray_28_crop, NormalizeGeometry{28, 28, 1, 2, -1, false})->Apply(repeat);
BENCHMARK_CAPTURE(time_normalize, gray_28_crop_flip, NormalizeGeometry{28, 28, 1, 2, -1, true})->Apply(repeat);
BENCHMARK_CAPTURE(time_normalize, color_32_plain, NormalizeGeometry{32, 32, 3, 0, 0, false})->Apply(repeat);
BENCHMARK_CAPTURE(time_normalize, color_32_crop_flip, NormalizeGeometry{32, 32, 3, -3, 4, true})->Apply(repeat);
BENCHMARK_CAPTURE(time_normalize, color_224_plain, NormalizeGeometry{224, 224, 3, 0, 0, false})->Apply(repeat);

}  // namespace

BENCHMARK_MAIN();
