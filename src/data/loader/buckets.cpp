#include "data/loader/detail/buckets.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/fail.h"
#include "core/base/random.h"
#include "data/loader/detail/on_corrupt.h"
#include "data/loader/detail/sample_check.h"
#include "data/source/sample_reader.h"

namespace headrace::detail {
namespace {

// Apart from the keys of transforms, orders and replacements.
constexpr std::uint64_t kTieKey = 0x510E527FADE682D1U;

// Files are waited for more than worked on; more threads are not worth their start.
constexpr std::int64_t kThreadsMax = 8, kImagesAThread = 256;

struct Shaped {
  std::int64_t tie = 0, index = 0;
  ImageSize size;
};

// Finds the size of all images, by several threads.
class SizesReading {
 public:
  SizesReading(const Source& source, const DataOptions& options, std::vector<Shaped>& samples)
      : source_(source), options_(options), samples_(samples) {}

  void run() {
    {
      std::vector<std::jthread> others;
      const std::int64_t threads = std::min(source_.size() / kImagesAThread + 1, kThreadsMax);
      try {
        for (std::int64_t i = 1; i < threads; ++i) others.emplace_back([this] { work(); });
      } catch (const std::system_error&) {
        // No more threads to be had: those there are read all.
      }
      work();
    }
    if (failure_ != nullptr) std::rethrow_exception(failure_);
  }

 private:
  void work() noexcept {
    std::vector<std::uint8_t> buffer;
    for (std::int64_t index = next_++; index < source_.size(); index = next_++) {
      try {
        samples_[static_cast<std::size_t>(index)].size = size_of_image(index, buffer);
      } catch (...) {
        note_failure(index);
      }
    }
  }

  ImageSize size_of_image(std::int64_t index, std::vector<std::uint8_t>& buffer) const {
    std::optional<ImageSize> size;
    try {
      check_limit(source_.source(), source_.sample_bytes(index), index, options_.limits());
      size = size_told(index, buffer);
    } catch (const Error& error) {
      if (options_.on_corrupt == OnCorrupt::fail || !is_of_the_sample(error.code())) throw;
      // A read that fails here may go well in another rank, whose order would then be another one.
      if (options_.world_size > 1 && !is_of_its_bytes(error.code())) throw;
      return {};
    }
    if (size) return *size;
    fail(ErrorCode::invalid_argument,
         "data: data.bucket_by is \"shape\", and the size of {} is not known before it is read; wanted \"bytes\", or "
         "a source that tells them: folder:, list:, pack:, idx:",
         source_.name(index));
  }

  std::optional<ImageSize> size_told(std::int64_t index, std::vector<std::uint8_t>& buffer) const {
    const ImageShape stored = stored_shape(source_.info().schema);
    if (stored.height > 0) return ImageSize{stored.height, stored.width};
    const Capabilities& can = source_.can();
    if (can.sizes != nullptr) return can.sizes->image_size(index, buffer);
    if (can.rows == nullptr) return std::nullopt;
    const Payload told = can.rows->outline(index);
    return ImageSize{told.height(), told.width()};
  }

  // The first one's in the order of the source, whatever the threads.
  void note_failure(std::int64_t index) noexcept {
    next_ = source_.size();  // What comes later is not asked for any more.
    std::lock_guard lock(mutex_);
    if (failure_ != nullptr && index > failed_) return;
    failure_ = std::current_exception();
    failed_ = index;
  }

  const SampleReader source_;
  const DataOptions& options_;
  std::vector<Shaped>& samples_;
  std::atomic<std::int64_t> next_{0};
  std::mutex mutex_;  // Guards what follows.
  std::exception_ptr failure_;
  std::int64_t failed_ = 0;
};

// Whether heights differ more than widths, each against its mean: the squares of their coefficients of variation.
bool differ_in_height(std::span<const Shaped> samples) {
  std::uint64_t height = 0, heights_squared = 0, width = 0, widths_squared = 0;
  for (const Shaped& sample : samples) {
    const auto h = static_cast<std::uint64_t>(sample.size.height), w = static_cast<std::uint64_t>(sample.size.width);
    height += h;
    heights_squared += h * h;
    width += w;
    widths_squared += w * w;
  }
  const auto h = static_cast<double>(height), w = static_cast<double>(width);
  return static_cast<double>(heights_squared) * w * w > static_cast<double>(widths_squared) * h * h;
}

void halve(std::span<Shaped> samples, std::int64_t group) {
  const std::int64_t groups = (std::ssize(samples) + group - 1) / group;
  if (groups <= 1) {
    std::sort(samples.begin(), samples.end(), [](const Shaped& a, const Shaped& b) { return a.tie < b.tie; });
    return;
  }
  const bool by_height = differ_in_height(samples);
  const auto key = [by_height](const Shaped& sample) {
    const auto [height, width] = sample.size;
    return by_height ? std::tuple(height, width, sample.tie) : std::tuple(width, height, sample.tie);
  };
  const auto middle = static_cast<std::size_t>(groups / 2 * group);
  std::nth_element(samples.begin(), samples.begin() + static_cast<std::ptrdiff_t>(middle), samples.end(),
                   [&key](const Shaped& a, const Shaped& b) { return key(a) < key(b); });
  halve(samples.first(middle), group);
  halve(samples.subspan(middle), group);
}

void sort_by_bytes(const SampleReader& source, std::vector<Shaped>& samples) {
  std::sort(samples.begin(), samples.end(), [&source](const Shaped& a, const Shaped& b) {
    return std::tuple(source.sample_bytes(a.index), a.tie) < std::tuple(source.sample_bytes(b.index), b.tie);
  });
}

}  // namespace

std::vector<std::int64_t> by_likeness(const Source& source, const DataOptions& options, std::uint64_t seed,
                                      std::int64_t group) {
  if (const Schema& schema = source.info().schema; options.bucket_by == BucketBy::shape && !schema.image()) {
    fail(ErrorCode::invalid_argument,
         "data: data.bucket_by is \"shape\", and the source has no image: {}; wanted \"bytes\"", schema.text());
  }
  const Permutation ties{source.size(), seed ^ kTieKey, 0};
  std::vector<Shaped> samples;
  samples.reserve(static_cast<std::size_t>(source.size()));
  for (std::int64_t i = 0; i < source.size(); ++i) samples.push_back({ties(i), i, {}});
  if (options.bucket_by == BucketBy::shape) {
    SizesReading{source, options, samples}.run();
    halve(samples, group);
  } else {
    sort_by_bytes(SampleReader{source}, samples);
  }
  std::vector<std::int64_t> order;
  order.reserve(samples.size());
  for (const Shaped& sample : samples) order.push_back(sample.index);
  return order;
}

}  // namespace headrace::detail
