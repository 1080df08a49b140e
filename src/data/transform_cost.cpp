#include "data/detail/transform_cost.h"

#include <headrace/error.h>
#include <headrace/options.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "base/clock.h"
#include "data/detail/loader_impl.h"
#include "data/detail/picture.h"
#include "data/detail/sample_check.h"

namespace headrace {
namespace {

using detail::HeldSample;
using detail::PictureMaker;

// What measuring takes at most, each on its own.
constexpr std::int64_t kSamplesMax = 32, kBytesMax = std::int64_t{64} << 20;
constexpr double kReadingMax_s = 0.3, kMakingMax_s = 0.7;
constexpr std::int64_t kRoundsMin = 3, kRoundsMax = 101;
constexpr std::int64_t kVariantsMax = 3;

struct Variant {
  TransformCost cost;
  DataOptions options;
  std::vector<double> ratios{};  // Of each round: its time over that of all transforms.
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

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

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
        held.sample = {source.read(held.index, held.buffer)};
        detail::check_sample(source, held.sample, held.index, limits, /*whole=*/true);
      } catch (const Error& error) {
        if (error.code() == ErrorCode::cancelled) throw;  // As Ctrl-C in a source in Python.
        continue;
      }
      bytes += std::ssize(held.sample.bytes);
      all_.push_back(std::move(held));
    }
  }

  // As many as are made in `seconds` where all of them take `all_s`, and one at least.
  void keep_those_made_in(double seconds, double all_s) {
    if (all_s <= seconds) return;
    const auto count = static_cast<std::size_t>(static_cast<double>(all_.size()) * (seconds / all_s));
    if (!all_.empty()) all_.resize(std::max<std::size_t>(count, 1));
  }

  void make_each(PictureMaker& maker, std::span<std::byte> out) {
    const auto fails = [&](const Held& held) {
      try {
        maker.make(held.sample, held.index, held.index, out);
        return false;
      } catch (const Error&) {
        return true;
      }
    };
    all_.erase(std::remove_if(all_.begin(), all_.end(), fails), all_.end());
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
                                                       const MakingSeconds& making) {
  std::vector<Variant> variants = variants_of(options, augment);
  if (variants.empty()) return {};
  making(options, 0);  // Buffers grow.
  double told_s = 0;
  for (std::int64_t round = 0; round < kRoundsMax && (round < kRoundsMin || told_s < kMakingMax_s); ++round) {
    const double all_s = making(options, round);
    told_s += all_s;
    for (Variant& variant : variants) {
      const double without_s = making(variant.options, round);
      told_s += without_s;
      if (all_s > 0) variant.ratios.push_back(without_s / all_s);
    }
  }
  std::vector<TransformCost> costs;
  for (Variant& variant : variants) {
    if (variant.ratios.empty()) continue;  // Nothing could be made.
    variant.cost.share = 1 - median(std::move(variant.ratios));
    costs.push_back(std::move(variant.cost));
  }
  std::stable_sort(costs.begin(), costs.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
  return costs;
}

std::vector<TransformCost> Loader::Impl::transform_costs() const {
  detail::EntropyShelf shelf{*source, options.index == IndexUse::none ? IndexUse::none : IndexUse::use};
  detail::Workspace workspace;
  std::optional<HeldSamples> samples;  // Read only where there is something to leave out.
  std::vector<std::byte> out(static_cast<std::size_t>(shape.channels) * static_cast<std::size_t>(shape.height) *
                             static_cast<std::size_t>(shape.width) * image::bytes_of(options.transform.dtype));
  return detail::costs_of_transforms(options, training, [&](const DataOptions& how, std::int64_t epoch) {
    const bool is_first = !samples;
    if (is_first) samples.emplace(*source, options.limits());
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
                               shelf};
    PictureMaker maker{variant, workspace, nullptr};
    const std::int64_t begin_ns = thread_cpu_ns();
    samples->make_each(maker, out);
    const double seconds = static_cast<double>(thread_cpu_ns() - begin_ns) * 1e-9;
    if (is_first) samples->keep_those_made_in(kMakingMax_s / (kRoundsMin * (1 + kVariantsMax)), seconds);
    return seconds;
  });
}

std::vector<TransformCost> Loader::transform_costs() const {
  return impl_->transform_costs();
}

}  // namespace headrace
