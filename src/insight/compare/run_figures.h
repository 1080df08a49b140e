// What one run told of itself: the figures that are compared.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace headrace {

struct RunFigures {
  std::map<std::string, double> metrics;  // By name, finite; seconds, bytes, shares.
  std::map<std::string, double> stage_s;  // Seconds a step, by the step's part: data_wait, forward, ...
  std::vector<double> outputs;            // What it computed, for the guard against wrong results; empty: not told.
  // Names of metrics that somebody else has seen, who does not see them in each run; none of them is missed.
  std::set<std::string> seen_from_outside;
  // Metrics that such a run cannot have, each with the reason: of a loader without a cache its hit_rate.
  std::map<std::string, std::string> not_applicable{};
  // Name and value: CPU, Cores, GPU; empty: not told.
  std::vector<std::pair<std::string, std::string>> machine;
};

// JSON lines, as a script writes them; each line is an object:
//   step_s    seconds of one step; of all of them step_p50_s, step_p95_s (from 20 steps on) and step_p99_s (from 100)
//   samples   of that step; with step_s on the same line, samples_per_s follows
//   stages    {"forward": 0.01, ...}, seconds of that step
//   outputs   a number or a list of numbers
//   metric, value   a line of hr.monitor's: the same as {METRIC: VALUE}
// and any other name with a number is a metric; of several lines the mean. step, epoch, version and wall_time are none,
// nor are texts and true or false. Empty lines do not count. Error{corrupt_data} names `source`, line and key: no JSON
// object, a number that is not finite, a time that is not above 0.
RunFigures figures_of_lines(std::string_view text, const std::string& source);

// Error{corrupt_data} names `source`: the object's version is not 1.
void check_version(const nlohmann::ordered_json& document, const std::string& source);

// A profile.json or result.json of a run's folder. What such a run could not measure is left out. hit_rate is the share
// of the samples that were looked for in the cache of the training data's loader and found there. Error{corrupt_data}
// names `source`: it is neither, of another version, or lacks what each of them has.
RunFigures figures_of_document(const nlohmann::ordered_json& document, const std::string& source);

// "hit_rate is not compared: NEW looked for no sample in a cache"; empty: both runs may have the metric.
std::string why_not_compared(const std::string& metric, const RunFigures& old_run, const RunFigures& new_run);

nlohmann::ordered_json to_json(const RunFigures& figures);  // metrics, stages, outputs, not_applicable.
// Of to_json(). Error{corrupt_data} names `source` and key.
RunFigures figures_from_json(const nlohmann::ordered_json& document, const std::string& source);

}  // namespace headrace
