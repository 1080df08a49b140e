#include "insight/diagnose/detail/memory_shares.h"

#include <headrace/report.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "insight/diagnose/json.h"

namespace headrace {
namespace detail {
namespace {

constexpr std::array<const char*, 6> kAlwaysShown{"parameters",  "gradients", "optimizer",
                                                  "activations", "batches",   "cache"};

MemoryShare share_of(std::string name, std::vector<std::int64_t> bytes, std::size_t peak) {
  MemoryShare share{std::move(name), true, std::move(bytes)};
  double sum = 0;
  for (const std::int64_t value : share.bytes) sum += static_cast<double>(value);
  share.at_peak = share.bytes[peak];
  share.mean = static_cast<std::int64_t>(sum / static_cast<double>(share.bytes.size()));
  share.last = share.bytes.back();
  return share;
}

}  // namespace

std::size_t peak_index(const MemoryTimeline& timeline) {
  return static_cast<std::size_t>(std::max_element(timeline.resident.begin(), timeline.resident.end()) -
                                  timeline.resident.begin());
}

std::vector<MemoryShare> memory_shares(const MemoryTimeline& timeline) {
  const std::size_t peak = peak_index(timeline);
  std::vector<MemoryShare> shares;
  for (const char* name : kAlwaysShown) {
    const auto counted =
        std::find_if(timeline.classes.begin(), timeline.classes.end(), [&](const auto& c) { return c.name == name; });
    shares.push_back(counted == timeline.classes.end() ? MemoryShare{name} : share_of(name, counted->bytes, peak));
  }
  for (const MemoryTimeline::Class& counted : timeline.classes) {
    if (std::find(kAlwaysShown.begin(), kAlwaysShown.end(), counted.name) != kAlwaysShown.end()) continue;
    shares.push_back(share_of(counted.name, counted.bytes, peak));
  }
  std::vector<std::int64_t> other;
  for (std::size_t i = 0; i < timeline.resident.size(); ++i) other.push_back(timeline.other(i));
  shares.push_back(share_of("other", std::move(other), peak));
  return shares;
}

MemoryTimeline condensed(const MemoryTimeline& timeline, std::size_t moments_max) {
  const std::size_t count = timeline.resident.size(), kept = std::min(count, moments_max);
  MemoryTimeline result;
  for (const MemoryTimeline::Class& counted : timeline.classes) result.classes.push_back({counted.name, {}});
  for (std::size_t i = 0; i < kept; ++i) {
    const auto begin = timeline.resident.begin();
    const auto largest = std::max_element(begin + static_cast<std::ptrdiff_t>(i * count / kept),
                                          begin + static_cast<std::ptrdiff_t>((i + 1) * count / kept));
    const auto from = static_cast<std::size_t>(largest - begin);
    result.at_ns.push_back(timeline.at_ns[from]);
    result.resident.push_back(*largest);
    for (std::size_t k = 0; k < result.classes.size(); ++k) {
      result.classes[k].bytes.push_back(timeline.classes[k].bytes[from]);
    }
  }
  return result;
}

double seconds_at(const MemoryTimeline& timeline, std::size_t index) {
  return static_cast<double>(timeline.at_ns[index] - timeline.at_ns[0]) * 1e-9;
}

}  // namespace detail

nlohmann::ordered_json to_json(const MemoryTimeline& whole) {
  constexpr std::size_t kMoments = 256;
  if (whole.resident.empty()) return nullptr;
  const std::size_t peak = detail::peak_index(whole);
  nlohmann::ordered_json document{{"unit", "bytes"}};
  document["peak"] = {{"at_s", detail::seconds_at(whole, peak)}, {"bytes", whole.resident[peak]}};
  const MemoryTimeline timeline = detail::condensed(whole, kMoments);
  document["at_s"] = nlohmann::ordered_json::array();
  for (const std::int64_t at : timeline.at_ns) {
    document["at_s"].push_back(static_cast<double>(at - whole.at_ns[0]) * 1e-9);
  }
  document["resident"] = timeline.resident;
  const std::vector<detail::MemoryShare> shares = detail::memory_shares(whole), shown = detail::memory_shares(timeline);
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const detail::MemoryShare& share = shares[i];
    nlohmann::ordered_json& entry = document["classes"][share.name] = nullptr;
    if (!share.is_known) continue;
    entry = {{"at_peak", share.at_peak}, {"mean", share.mean}, {"last", share.last}, {"values", shown[i].bytes}};
  }
  return document;
}

}  // namespace headrace
