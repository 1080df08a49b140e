#include "insight/tune/quietness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "insight/tune/bets.h"
#include "insight/tune/statistics.h"

namespace headrace {
namespace {

std::vector<double> logs_of(std::span<const double> block_s) {
  std::vector<double> logs;
  for (const double seconds : block_s) logs.push_back(std::log(seconds));
  return logs;
}

// As if kGainPlanned were worth keeping where gain_min asks for more.
double planned_margin(double gain_min) {
  return std::max(std::log1p(kGainPlanned) - std::log1p(gain_min), std::log1p(kGainPlanned) / 2);
}

double pairs_for(double scatter, double gain_min) {
  return kPairsFactor * std::pow(scatter / planned_margin(gain_min), 2);
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.0f} %", *share * 100) : "unavailable";
}

std::string figures_of(const Quietness& found) {
  std::string text = found.scatter ? fmt::format(
                                         "neighbouring blocks of the job as written differ by {:.1f} % ({} "
                                         "blocks of {:.2f} s, correlation {})",
                                         *found.scatter * 100, found.blocks, found.block_s,
                                         found.lag ? fmt::format("{:.2f}", *found.lag) : "unavailable")
                                   : "the spread of the job's blocks is unavailable (too few fit into the budget)";
  text += fmt::format(
      "; other programs take {} of the cores, the host {}, idle {}; tasks waited for a core {} of the "
      "time (pressure)",
      percent(found.others), percent(found.steal), percent(found.idle), percent(found.pressure));
  // The topmost group says what the machine says.
  if (found.group_pressure && percent(found.group_pressure) != percent(found.pressure))
    text += fmt::format(", those of this control group {}", percent(found.group_pressure));
  return text;
}

}  // namespace

std::optional<double> scatter_of(std::span<const double> block_s) {
  if (static_cast<std::int64_t>(block_s.size()) < kQuietBlocksMin) return std::nullopt;
  const std::vector<double> logs = logs_of(block_s);
  std::vector<double> distances;
  for (std::size_t i = 1; i < logs.size(); ++i) distances.push_back(std::abs(logs[i] - logs[i - 1]));
  return 1.4826 * median(std::move(distances));
}

std::optional<double> lag_of(std::span<const double> block_s) {
  if (static_cast<std::int64_t>(block_s.size()) < kQuietBlocksMin) return std::nullopt;
  const std::vector<double> logs = logs_of(block_s);
  double mean = 0, products = 0, squares = 0;
  for (const double value : logs) mean += value / static_cast<double>(logs.size());
  for (std::size_t i = 0; i < logs.size(); ++i) {
    squares += (logs[i] - mean) * (logs[i] - mean);
    if (i > 0) products += (logs[i] - mean) * (logs[i - 1] - mean);
  }
  if (squares == 0) return std::nullopt;
  return products / squares;
}

std::int64_t pairs_to_decide(double scatter, double gain_min) {
  const double pairs = std::min(pairs_for(scatter, gain_min), static_cast<double>(kPairsPlannedMax));
  return std::max(kPairsToKeep, static_cast<std::int64_t>(std::ceil(pairs)));
}

Quietness judge_quietness(std::span<const double> block_s, const CpuUse& use, double gain_min) {
  Quietness found;
  found.blocks = static_cast<std::int64_t>(block_s.size());
  if (!block_s.empty()) found.block_s = median({block_s.begin(), block_s.end()});
  found.scatter = scatter_of(block_s);
  found.lag = lag_of(block_s);
  found.own = use.own;
  found.others = use.others;
  found.steal = use.steal;
  found.idle = use.idle;
  found.pressure = use.pressure;
  found.pressure_avg10 = use.pressure_avg10;
  found.group_pressure = use.group_pressure;
  found.group_pressure_avg10 = use.group_pressure_avg10;

  bool disturbed = false;
  if (found.scatter) {
    found.pairs_needed = pairs_to_decide(*found.scatter, gain_min);
    disturbed = pairs_for(*found.scatter, gain_min) > static_cast<double>(kPairsPlannedMax) / 2;
  }
  if (found.others && found.steal && found.idle) {
    found.cores_taken = *found.others + *found.steal >= kOthersMax && *found.idle < kIdleMin;
    disturbed = disturbed || found.cores_taken;
  }
  const bool known = found.scatter || found.others;
  if (known) found.quiet = !disturbed;
  found.sentence = fmt::format("{}: {}.",
                               !known      ? "Whether this machine is quiet is unavailable"
                               : disturbed ? "This machine is not quiet"
                                           : "This machine is quiet",
                               figures_of(found));
  return found;
}

}  // namespace headrace
