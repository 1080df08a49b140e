#include "media/codec/detail/jpeg_memory.h"

#include <gtest/gtest.h>
#include <headrace/error.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "media/codec/decode.h"
#include "media/codec/test_images.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define HEADRACE_FOREIGN_MALLOC 1
#endif

#ifndef HEADRACE_FOREIGN_MALLOC
// Of this test binary, libjpeg's included; free() stays glibc's, which knows both.
namespace {
std::atomic<std::int64_t> heap_allocations{0};
}
extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);
void* malloc(std::size_t size) noexcept {
  heap_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) noexcept {
  heap_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
}
#endif

namespace headrace::codec {
namespace {

using detail::JpegMemory;

// What only libjpeg decodes.
std::vector<Bytes> files_for_libjpeg() {
  std::vector<Bytes> files;
  for (const JpegForm& form :
       {JpegForm{.progressive = true}, JpegForm{.h = 1, .v = 1, .progressive = true}, JpegForm{.arithmetic = true},
        JpegForm{.progressive = true, .first_scan_only = true}, JpegForm{.progressive = true, .arithmetic = true}}) {
    files.push_back(jpeg_of(photograph(151, 203, 3, 1), form));
    files.push_back(jpeg_of(photograph(61, 300, 3, 2), form));
  }
  files.push_back(jpeg_of(photograph(90, 70, 1, 3), {.h = 1, .v = 1, .progressive = true}));
  files.push_back(jpeg_of(photograph(64, 80, 4, 4), {.h = 1, .v = 1}));
  return files;
}

Bytes decoded(Decoder& decoder, const Bytes& file, bool whole) {
  const ImageInfo info = decoder.open(file, 3);
  const Box box = whole ? Box{.height = info.height, .width = info.width}
                        : Box{.y = 9, .x = 21, .height = info.height / 2, .width = info.width / 2};
  Bytes pixels(static_cast<std::size_t>(box.height) * static_cast<std::size_t>(box.width) * 3);
  decoder.decode(box, pixels);
  return pixels;
}

TEST(JpegMemory, AnImageIsTheSameWhateverWasDecodedBeforeIt) {
  const std::vector<Bytes> files = files_for_libjpeg();
  Decoder kept;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      for (const bool whole : {false, true}) {
        Decoder fresh;
        EXPECT_EQ(decoded(kept, files[i], whole), decoded(fresh, files[i], whole)) << i << (whole ? " whole" : "");
      }
    }
  }
}

TEST(JpegMemory, ADamagedFileLeavesNothingBehind) {
  const std::vector<Bytes> files = files_for_libjpeg();
  Decoder kept;
  for (const Bytes& file : files) {
    Bytes cut = file;
    for (const std::size_t size : {file.size() / 8, file.size() / 2}) {
      cut.resize(size);
      try {
        decoded(kept, cut, true);
      } catch (const Error&) {
      }
      Decoder fresh;
      EXPECT_EQ(decoded(kept, file, true), decoded(fresh, file, true));
      cut = file;
    }
  }
}

#ifndef HEADRACE_FOREIGN_MALLOC
TEST(JpegMemory, OnceTheLargestImageIsKnownLibjpegTakesNothingFromTheHeap) {
  const std::vector<Bytes> files = files_for_libjpeg();
  Decoder decoder;
  std::vector<Bytes> out;
  std::vector<ImageInfo> infos;
  for (const Bytes& file : files) {
    out.push_back(decoded(decoder, file, true));
    infos.push_back(decoder.open(file, 3));
  }
  for (int round = 0; round < 2; ++round) {
    const std::int64_t before = heap_allocations.load();
    for (std::size_t i = 0; i < files.size(); ++i) {
      decoder.open(files[i], 3);
      decoder.decode({.height = infos[i].height, .width = infos[i].width}, out[i]);
    }
    // In the first one the blocks become one.
    if (round == 1) {
      EXPECT_EQ(heap_allocations.load() - before, 0);
    }
  }
}

TEST(PngReader, OnceTheImagesFormsAreKnownLibpngTakesNothingFromTheHeap) {
  std::vector<Bytes> files, out;
  for (const auto& [color, samples] :
       {std::pair{PNG_COLOR_TYPE_GRAY, 1}, std::pair{PNG_COLOR_TYPE_RGB, 3}, std::pair{PNG_COLOR_TYPE_RGB_ALPHA, 4}}) {
    for (const int side : {40, 1000}) {
      files.push_back(png_of(side, side, photograph(side, side * samples, 1, 1).pixels, {.color = color}));
    }
  }
  Decoder decoder;
  for (const Bytes& file : files) out.push_back(decoded(decoder, file, true));
  const std::int64_t before = heap_allocations.load();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      const ImageInfo info = decoder.open(files[i], 3);
      decoder.decode({.height = info.height, .width = info.width}, out[i]);
    }
  }
  EXPECT_EQ(heap_allocations.load() - before, 0);
}
#endif

TEST(JpegMemory, GivesAlignedPartsOfOneBlockAndGrowsByWhatTheyNeed) {
  JpegMemory memory;
  std::vector<std::byte*> parts;
  for (const std::size_t bytes : {1u, 64u, 65u, 300'000u, 7u}) {
    auto* part = static_cast<std::byte*>(memory.take(bytes));
    ASSERT_NE(part, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(part) % 64, 0u);
    std::memset(part, 1, bytes);
    parts.push_back(part);
  }
  const std::size_t needed = memory.bytes();
  EXPECT_LT(needed, 500'000u);
  for (int image = 0; image < 3; ++image) {
    memory.reset();
    for (const std::size_t bytes : {1u, 64u, 65u, 300'000u, 7u}) std::memset(memory.take(bytes), 1, bytes);
    EXPECT_EQ(memory.bytes(), needed);
  }
  EXPECT_EQ(memory.take(SIZE_MAX), nullptr);
  memory.trim(needed);
  EXPECT_EQ(memory.bytes(), needed);
  memory.trim(needed - 1);
  EXPECT_EQ(memory.bytes(), 0u);
}

}  // namespace
}  // namespace headrace::codec
