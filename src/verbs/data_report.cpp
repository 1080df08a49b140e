#include "verbs/data_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

namespace headrace {
namespace {

constexpr std::size_t kShown = 5;

std::vector<CorruptSample> corrupt_samples(const Training& training) {
  std::vector<CorruptSample> all = training.loader().corrupt_samples();
  const std::vector<CorruptSample> test = training.test_loader().corrupt_samples();
  all.insert(all.end(), test.begin(), test.end());
  return all;
}

std::string policy_name(OnCorrupt policy) {
  for (const auto& choice : choices(policy)) {
    if (choice.value == policy) return std::string(choice.name);
  }
  return "?";
}

}  // namespace

void tell_remarks(Console& console, const Training& training) {
  for (const std::string& remark : training.remarks()) console.warning(remark);
}

void tell_corrupt_samples(Console& console, const Training& training) {
  const std::vector<CorruptSample> all = corrupt_samples(training);
  if (all.empty()) return;
  const char* done = training.recipe().data.on_corrupt == OnCorrupt::zero ? "left out" : "replaced by others";
  console.warning(fmt::format("{} {} could not be read and {} {}:", all.size(), all.size() == 1 ? "sample" : "samples",
                              all.size() == 1 ? "was" : "were", done));
  for (std::size_t i = 0; i < std::min(all.size(), kShown); ++i) console.warning("  " + all[i].reason);
  if (all.size() > kShown) console.warning(fmt::format("  and {} more", all.size() - kShown));
}

nlohmann::ordered_json corrupt_samples_json(const Training& training) {
  nlohmann::ordered_json samples = nlohmann::ordered_json::array();
  for (const CorruptSample& sample : corrupt_samples(training)) {
    samples.push_back({{"name", sample.name}, {"reason", sample.reason}});
  }
  return {{"on_corrupt", policy_name(training.recipe().data.on_corrupt)},
          {"times", training.loader().statistics().corrupt + training.test_loader().statistics().corrupt},
          {"samples", std::move(samples)}};
}

}  // namespace headrace
