#include "data/detail/transform_cost.h"

#include <headrace/error.h>
#include <headrace/options.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/middle.h"
#include "data/detail/loader_impl.h"
#include "data/detail/picture.h"
#include "data/detail/sample_check.h"

namespace headrace {
namespace {

using detail::HeldSample;
using detail::Making;
using detail::PictureMaker;

// What measuring takes at most, each on its own. Fewer samples would lie in the processor's cache from the second round
// on, and all that a transform does not change would seem cheaper than it is.
constexpr std::int64_t kSamplesMax = 1024, kBytesMax = std::int64_t{64} << 20;
// Batches that samples are written to in turn, as a loader of two batches ahead does it.
constexpr std::int64_t kBatches = 4;
constexpr double kReadingMax_s = 0.3, kMakingMax_s = 0.7;
constexpr std::int64_t kRoundsMin = 3, kRoundsMax = 101;
constexpr std::int64_t kVariantsMax = 3;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

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
  BatchRows(std::int64_t batch_size, std::size_t row_bytes)
      : row_bytes_(row_bytes),
        count_(std::clamp(kBytesMax / static_cast<std::int64_t>(row_bytes), std::int64_t{1}, kBatches * batch_size)),
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
  HeldSamples(const Source& source, const SampleLimits& limits) {
    const std::int64_t wanted = std::min(kSamplesMax, source.size()), begin_ns = monotonic_ns();
    std::int64_t bytes = 0;
    for (std::int64_t i = 0; i < wanted && bytes < kBytesMax && seconds_since(begin_ns) < kReadingMax_s; ++i) {
      Held held{.index = i * (source.size() / wanted)};
      try {
        detail::check_limit(source, source.sample_bytes(held.index), held.index, limits);
        const auto outline = source.outline(held.index);
        held.sample = {outline ? *outline : source.read(held.index, held.buffer)};
        detail::check_sample(source, held.sample, held.index, limits, /*whole=*/!outline);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::cancelled) throw;  // As Ctrl-C in a source in Python.
        continue;
      }
      bytes += std::ssize(held.sample.bytes);
      all_.push_back(std::move(held));
    }
  }

  // Keeps those that can be made, and of these those that are made in `seconds`, and one at least.
  void make_each(PictureMaker& maker, BatchRows& rows, double seconds) {
    const std::int64_t begin_ns = monotonic_ns();
    std::size_t made = 0;
    for (Held& held : all_) {
      if (made > 0 && seconds_since(begin_ns) > seconds) break;
      try {
        maker.make(held.sample, held.index, held.index, rows.next());
      } catch (const Error&) {
        continue;
      }
      std::swap(all_[made++], held);
    }
    all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(made), all_.end());
  }

 private:
  struct Held {
    std::int64_t index;
    std::vector<std::uint8_t> buffer{};  // Its memory stays where it is when this moves.
    HeldSample sample{};
  };
  std::vector<Held> all_;
};

}  // namespace

std::vector<TransformCost> detail::costs_of_transforms(const DataOptions& options, bool augment,
                                                       const MakeSamples& make) {
  std::vector<Variant> variants = variants_of(options, augment);
  if (variants.empty()) return {};
  make(options, 0);  // Buffers grow.
  double told_s = 0;
  for (std::int64_t round = 0; round < kRoundsMax && (round < kRoundsMin || told_s < kMakingMax_s); ++round) {
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
  detail::EntropyShelf shelf{*source, options.index == IndexUse::none ? IndexUse::none : IndexUse::use};
  detail::Workspace workspace;
  std::optional<HeldSamples> samples;  // Read only where there is something to leave out,
  std::optional<BatchRows> rows;       // likewise.
  const std::size_t row_bytes = static_cast<std::size_t>(shape.channels) * static_cast<std::size_t>(shape.height) *
                                static_cast<std::size_t>(shape.width) * image::bytes_of(options.transform.dtype);
  return detail::costs_of_transforms(options, training, [&](const DataOptions& how, std::int64_t epoch) {
    const bool is_first = !samples;
    if (is_first) {
      samples.emplace(*source, options.limits());
      rows.emplace(options.batch_size, row_bytes);
    }
    const detail::Pass variant{*source,
                               {how.transform.dtype, how.transform.layout, &table},
                               how,
                               shape,
                               OnCorrupt::fail,
                               seed,
                               epoch,
                               training,
                               detail::EpochOrder{order, epoch},
                               order.repeats(),
                               deal_from(0),
                               shelf,
                               thread_cpu_ns};
    PictureMaker maker{variant, workspace, nullptr};
    const std::int64_t begin_ns = thread_cpu_ns();
    samples->make_each(maker, *rows, is_first ? kMakingMax_s / (kRoundsMin * (1 + kVariantsMax)) : kNoLimit);
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
