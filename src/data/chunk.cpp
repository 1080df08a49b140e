#include "data/detail/chunk.h"

#include <headrace/error.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>

#include "base/clock.h"

namespace headrace::detail {
namespace {

std::string name_of(const Source& source, std::int64_t index) {
  try {
    return source.sample_name(index);
  } catch (...) {  // The failure to be reported is the sample's, not that of its name.
    return fmt::format("sample {}", index);
  }
}

// The current exception as an Error that names the sample; as std::bad_alloc when there is no memory for its message.
std::exception_ptr error_of_sample(const Source& source, std::int64_t index) noexcept try {
  const std::string name = name_of(source, index);
  try {
    throw;
  } catch (const Error& error) {
    if (std::string_view(error.what()).find(name) != std::string_view::npos) return std::current_exception();
    return std::make_exception_ptr(Error(error.code(), fmt::format("data: {}: {}", name, error.what())));
  } catch (const std::bad_alloc&) {
    return std::make_exception_ptr(Error(ErrorCode::out_of_memory, fmt::format("data: {}: out of memory", name)));
  } catch (const std::exception& error) {
    return std::make_exception_ptr(Error(ErrorCode::internal, fmt::format("data: {}: {}", name, error.what())));
  } catch (...) {
    return std::make_exception_ptr(Error(ErrorCode::internal, fmt::format("data: {}: unknown exception", name)));
  }
} catch (...) {
  return std::current_exception();
}

void check_sample(const Source& source, const Sample& sample, std::int64_t index) {
  if (sample.height != source.height() || sample.width != source.width() || sample.channels != source.channels()) {
    fail(ErrorCode::corrupt_data, "data: {}: {} x {} pixels of {} channels; wanted {} x {} of {}",
         source.sample_name(index), sample.height, sample.width, sample.channels, source.height(), source.width(),
         source.channels());
  }
  const auto bytes = static_cast<std::size_t>(sample.height) * static_cast<std::size_t>(sample.width) *
                     static_cast<std::size_t>(sample.channels);
  if (sample.bytes.size() != bytes) {
    fail(ErrorCode::corrupt_data, "data: {}: {} bytes of pixels; wanted {}", source.sample_name(index),
         sample.bytes.size(), bytes);
  }
  if (sample.label < 0 || sample.label >= source.classes()) {
    fail(ErrorCode::corrupt_data, "data: {}: label {}; wanted 0 to {}", source.sample_name(index), sample.label,
         source.classes() - 1);
  }
}

// A shuffled order leaves the hardware no pattern, so each picture is asked for while the rest of the chunk is being
// read; after the first lines the hardware follows by itself. Inlined by force: g++ 12 takes a function that only
// prefetches for one without effect and removes the call.
[[gnu::always_inline]] inline void start_fetching(std::span<const std::uint8_t> pixels) {
  constexpr std::size_t kCacheLine = 64, kReach = 16 * kCacheLine;
  for (std::size_t at = 0; at < std::min(pixels.size(), kReach); at += kCacheLine) __builtin_prefetch(&pixels[at]);
}

// The draws depend on (seed, epoch, sample) alone: any thread gives the same picture.
image::NormalizeGeometry draw_geometry(const Pass& pass, const Sample& sample, std::int64_t index) {
  image::NormalizeGeometry geometry{.height = sample.height, .width = sample.width, .channels = sample.channels};
  const TransformOptions& transform = pass.transform;
  if (!pass.augment || (transform.pad == 0 && transform.flip_probability == 0)) return geometry;
  SampleRandom random{pass.seed, pass.epoch, index};
  if (transform.pad > 0) {
    const auto places = static_cast<std::uint32_t>(2 * transform.pad + 1);
    geometry.offset_y = static_cast<int>(random.below(places)) - static_cast<int>(transform.pad);
    geometry.offset_x = static_cast<int>(random.below(places)) - static_cast<int>(transform.pad);
  }
  geometry.flip = random.uniform() < transform.flip_probability;
  return geometry;
}

}  // namespace

ChunkReport load_chunk(const Pass& pass, Batch::Slot& slot, std::int64_t position, std::int64_t first,
                       std::int64_t count, Workspace& workspace) noexcept {
  HEADRACE_CHECK(count >= 1 && count <= kChunkMax, "data: a chunk of {} samples", count);
  ChunkReport report;
  const std::int64_t begin_ns = monotonic_ns();
  // All are read before the first is transformed, so that the two are timed apart at the price of one clock reading.
  std::array<Sample, kChunkMax> samples;
  std::int64_t got = 0;
  for (; got < count; ++got) {
    const std::int64_t at = position + first + got;
    if (at >= pass.stop_at.load(std::memory_order_relaxed)) break;
    const std::int64_t index = pass.sample_at(at);
    try {
      const auto i = static_cast<std::size_t>(got);
      Sample& sample = samples[i] = pass.source.read(index, workspace.files[i]);
      check_sample(pass.source, sample, index);
      start_fetching(sample.bytes);
      slot.sample_indices[static_cast<std::size_t>(first + got)] = index;
    } catch (...) {
      report.error = error_of_sample(pass.source, index);
      report.error_position = at;
      break;
    }
  }
  const std::int64_t read_ns = monotonic_ns();

  const std::size_t sample_floats = slot.images.size() / slot.labels.size();
  for (std::int64_t i = 0; i < got; ++i) {
    const auto in_slot = static_cast<std::size_t>(first + i);
    const Sample& sample = samples[static_cast<std::size_t>(i)];
    image::normalize(sample.bytes, draw_geometry(pass, sample, slot.sample_indices[in_slot]), pass.table,
                     slot.images.subspan(in_slot * sample_floats, sample_floats));
    slot.labels[in_slot] = sample.label;
    slot.mask[in_slot] = 1;
  }
  report.samples = got;
  report.read_ns = read_ns - begin_ns;
  report.busy_ns = monotonic_ns() - begin_ns;
  return report;
}

}  // namespace headrace::detail
