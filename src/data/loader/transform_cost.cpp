#include "data/loader/detail/transform_cost.h"

#include <fmt/format.h>
#include <headrace/error.h>
#include <headrace/option_fields.h>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/middle.h"
#include "core/base/random.h"
#include "data/loader/detail/loader_impl.h"
#include "data/loader/detail/sample_check.h"
#include "data/transform/image_maker.h"
#include "data/transform/shorthand.h"

namespace headrace {
namespace {

using detail::ImageMaker;
using detail::Making;

// What measuring takes at most, each on its own: samples, bytes of them and of the batches, seconds of reading and of
// making.
constexpr std::int64_t kSamplesMax = 1024, kBytesMax = std::int64_t{64} << 20;
constexpr double kReadingMax_s = 0.3, kMakingMax_s = 0.7;
// Of the bytes that are left of the loader's memory limit, for the samples and for the batches each.
constexpr std::int64_t kShareOfLeft = 4;
// Batches that samples are written to in turn, as a loader of two batches ahead does it.
constexpr std::int64_t kBatches = 4;
constexpr std::int64_t kRoundsMin = 3, kRoundsMax = 101;
constexpr std::int64_t kVariantsMax = 3;
// Samples are taken until making them once took this long. They are few, tens of photos: where they lie in the
// processor's cache from the second round on, what a transform does not change seems cheaper than it is.
constexpr double kOnce_s = kMakingMax_s / (kRoundsMin * (1 + kVariantsMax));
// What a round waits for is not CPU time, and bounded too.
constexpr double kWallMax_s = 3 * kMakingMax_s;

struct Variant {
  TransformCost cost;
  DataOptions options;
  // Of each round: its time over that of all transforms. A part that takes none has no ratio.
  std::vector<double> read{}, decode{}, augment{}, all{};

  void add(const Making& without, const Making& with) {
    const auto add_ratio = [](std::vector<double>& ratios, double without_s, double with_s) {
      if (with_s > 0) ratios.push_back(without_s / with_s);
    };
    add_ratio(read, without.read_s, with.read_s);
    add_ratio(decode, without.decode_s, with.decode_s);
    add_ratio(augment, without.augment_s, with.augment_s);
    add_ratio(all, without.all_s(), with.all_s());
  }
};

// A random crop's own settings are refused without it.
void leave_out_crop(Variant& variant) {
  const TransformOptions defaults;
  TransformOptions& transform = variant.options.transform;
  transform.crop = Crop::center;
  const auto reset = [&](const char* key, std::vector<double>& value, const std::vector<double>& neutral) {
    if (value == neutral) return;
    value = neutral;
    variant.cost.setting += fmt::format("; data.transform.{} = {}", key, to_toml(neutral));
  };
  reset("scale", transform.scale, defaults.scale);
  reset("ratio", transform.ratio, defaults.ratio);
}

std::vector<Variant> variants_of(const DataOptions& options, bool augment) {
  std::vector<Variant> variants;
  if (!augment) return variants;
  const auto without = [&](const char* name, const char* setting) -> TransformOptions& {
    variants.push_back({{name, std::string("data.transform.") + setting}, options});
    return variants.back().options.transform;
  };
  const TransformOptions& now = options.transform;
  if (now.size > 0 && now.crop != Crop::center) {
    without("crop", "crop = \"center\"");
    leave_out_crop(variants.back());
  }
  if (now.pad > 0) without("pad", "pad = 0").pad = 0;
  if (now.flip_probability > 0) without("flip", "flip_probability = 0").flip_probability = 0;
  return variants;
}

double seconds_of(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

double share_of(const std::vector<double>& ratios) {
  return ratios.empty() ? 0 : 1 - middle_of(ratios);
}

// Where samples are written to: rows of some batches in turn.
class BatchRows {
 public:
  BatchRows(std::int64_t batch_size, std::size_t row_bytes, std::int64_t bytes_max)
      : row_bytes_(row_bytes),
        count_(std::clamp(bytes_max / static_cast<std::int64_t>(row_bytes), std::int64_t{1}, kBatches * batch_size)),
        bytes_(row_bytes * static_cast<std::size_t>(count_)) {}

  std::span<std::byte> next() {
    const auto row = static_cast<std::size_t>(at_++ % count_);
    return std::span{bytes_}.subspan(row * row_bytes_, row_bytes_);
  }

 private:
  const std::size_t row_bytes_;
  const std::int64_t count_;
  std::vector<std::byte> bytes_;
  std::int64_t at_ = 0;
};

// Samples and the memory that holds them. One that cannot be read or decoded, or is not as its source says, is left
// out: the loader tells of it when its turn comes.
class HeldSamples {
 public:
  // Reads and makes one after the other, from all over the source.
  HeldSamples(const SampleReader& source, const detail::SampleFields& fields, const SampleLimits& limits,
              std::uint64_t seed, std::int64_t bytes_max, ImageMaker& maker, BatchRows& rows) {
    const Permutation order{source.size(), seed, 0};
    const std::int64_t wanted = std::min(kSamplesMax, source.size());
    double reading_s = 0, making_s = 0;
    std::int64_t bytes = 0;
    for (std::int64_t i = 0; i < wanted && reading_s < kReadingMax_s && making_s < kOnce_s; ++i) {
      if (!all_.empty() && bytes >= bytes_max) break;
      Held held{.index = order(i), .sample = Sample{fields.schema.size()}, .image = *fields.image};
      std::int64_t begin_ns = monotonic_ns();
      const bool is_read = succeeds([&] { read(source, fields, limits, held); });
      reading_s += seconds_since(begin_ns);
      if (!is_read) continue;
      begin_ns = monotonic_ns();
      const bool is_made =
          succeeds([&] { maker.make(held.sample[held.image], 1, held.index, held.index, rows.next()); });
      making_s += seconds_since(begin_ns);
      if (!is_made) continue;
      bytes += std::ssize(held.sample[held.image].bytes);
      all_.push_back(std::move(held));
    }
  }

  bool empty() const { return all_.empty(); }

  // Leaves out those that cannot be made.
  void make_each(ImageMaker& maker, BatchRows& rows) {
    std::erase_if(all_, [&](const Held& held) {
      return !succeeds([&] { maker.make(held.sample[held.image], 1, held.index, held.index, rows.next()); });
    });
  }

 private:
  struct Held {
    std::int64_t index;
    Sample sample;  // Its memory stays where it is when this moves.
    std::size_t image;
  };

  static void read(const SampleReader& source, const detail::SampleFields& fields, const SampleLimits& limits,
                   Held& held) {
    detail::check_limit(source.source(), source.sample_bytes(held.index), held.index, limits);
    const bool in_rows = source.can().rows != nullptr && fields.are_image_and_labels;
    if (in_rows) {
      held.sample.image() = source.can().rows->outline(held.index);
      held.sample.set_label(source.label(held.index));
    } else {
      source.read(held.index, held.sample);
    }
    detail::check_sample(source.source(), fields, held.sample, held.index, limits, /*whole=*/!in_rows);
  }

  template <class Step>
  static bool succeeds(const Step& step) {
    try {
      step();
      return true;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::cancelled) throw;  // As Ctrl-C in a source in Python.
      return false;
    }
  }

  std::vector<Held> all_;
};

}  // namespace

std::vector<TransformCost> detail::costs_of_transforms(const DataOptions& options, bool augment,
                                                       const MakeSamples& make) {
  std::vector<Variant> variants = variants_of(options, augment);
  if (variants.empty()) return {};
  const std::int64_t begin_ns = monotonic_ns();
  make(options, 0);  // Buffers grow.
  double told_s = 0;
  const auto wants_another = [&](std::int64_t round) {
    if (round == 0) return true;
    return (round < kRoundsMin || told_s < kMakingMax_s) && seconds_since(begin_ns) < kWallMax_s;
  };
  for (std::int64_t round = 0; round < kRoundsMax && wants_another(round); ++round) {
    const Making with = make(options, round);
    told_s += with.all_s();
    for (Variant& variant : variants) {
      const Making without = make(variant.options, round);
      told_s += without.all_s();
      variant.add(without, with);
    }
  }
  std::vector<TransformCost> costs;
  for (Variant& variant : variants) {
    if (variant.all.empty()) continue;  // Nothing could be made.
    TransformCost cost = std::move(variant.cost);
    cost.share = share_of(variant.all);
    cost.read_share = share_of(variant.read);
    cost.decode_share = share_of(variant.decode);
    cost.augment_share = share_of(variant.augment);
    costs.push_back(std::move(cost));
  }
  std::stable_sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
  return costs;
}

std::vector<TransformCost> Loader::Impl::transform_costs() const {
  if (!fields.image || has_list || is_open) return {};
  detail::EntropyIndexCache index_cache{*source, options.index == IndexUse::none ? IndexUse::none : IndexUse::use};
  detail::ImageWorkspace workspace;
  std::optional<HeldSamples> samples;  // Read only where there is something to leave out,
  std::optional<BatchRows> rows;       // likewise.
  const std::size_t row_bytes = static_cast<std::size_t>(shape.channels) * static_cast<std::size_t>(shape.height) *
                                static_cast<std::size_t>(shape.width) * transform::bytes_of(plan.type());
  std::unique_lock lock(mutex);
  // What is left beside the cache, which stays.
  const std::int64_t bytes_left = cache.bytes_left(/*keep=*/false) - cache.bytes_replaced(/*keep=*/false);
  lock.unlock();
  const ImageShape stored = stored_shape(fields.schema);
  const std::int64_t bytes_max = std::clamp<std::int64_t>(bytes_left / kShareOfLeft, 0, kBytesMax);
  return detail::costs_of_transforms(options, training, [&](const DataOptions& how, std::int64_t epoch) {
    const transform::FusedStage its_stage =
        transform::stage_of(how.transform, {stored.height, stored.width, stored.channels}, training);
    const detail::EpochTransform variant{reader.can().rows, its_stage, how, seed, epoch, &index_cache, thread_cpu_ns};
    ImageMaker maker{variant, workspace, nullptr};
    if (!samples) {
      rows.emplace(options.batch_size, row_bytes, bytes_max);
      samples.emplace(reader, fields, options.limits(), seed, bytes_max, maker, *rows);
      return Making{};
    }
    const std::int64_t begin_ns = thread_cpu_ns();
    samples->make_each(maker, *rows);
    if (samples->empty()) return Making{};  // What was measured is the measuring.
    const std::int64_t all_ns = thread_cpu_ns() - begin_ns;
    return Making{.read_s = seconds_of(maker.read_ns()),
                  .decode_s = seconds_of(maker.decode_ns()),
                  .augment_s = seconds_of(all_ns - maker.read_ns() - maker.decode_ns())};
  });
}

std::vector<TransformCost> Loader::transform_costs() const {
  return impl_->transform_costs();
}

}  // namespace headrace
