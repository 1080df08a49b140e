// A run as lines for a terminal while it goes on: rate, time left, time split, queues, memory, hit rate. The words and
// the layout are those of hr.monitor(live=True) (python/headrace/_live_view.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

struct LivePlace {
  std::optional<std::int64_t> step{};   // Steps that are done. nullopt, here and below: unavailable.
  std::optional<std::int64_t> total{};  // Of the whole run.
  std::optional<double> steps_per_s{};
};

// Four lines. Of the figures, by name: samples_per_s; time.<part>_s, seconds a step, of data_wait, transfer, forward,
// backward, optimizer and other; every one with "queue" in its name; process.resident_bytes; cache.hit_rate. What is
// not among them is "unavailable". A pure function.
std::vector<std::string> live_lines(const LivePlace& place, const std::map<std::string, double>& figures);

}  // namespace headrace
