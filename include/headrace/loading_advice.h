// What loading a sample costs, and what leaving out a transform would gain. Pure functions of their arguments, safe to
// call from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// What loading costs by part, in seconds of a sample, threads added up.
struct LoadingCosts {
  double read_s = 0;
  double decode_s = 0;
  double augment_s = 0;          // Crop, resize, flip, normalise, layout and type: one pass, into the batch's memory.
  double collate_s = 0;          // Making batches of samples beyond that pass.
  std::optional<double> copy_s;  // To where the step computes; nullopt: unavailable.

  double sample_s() const { return read_s + decode_s + augment_s + collate_s; }
};

// What advice on loading needs to know.
struct LoadingInput {
  struct Transform {  // An optional one.
    std::string name;
    std::string setting;       // That leaves it out: "data.transform.flip_probability = 0".
    double read_share = 0;     // Of the costs' read_s,
    double decode_share = 0;   // of decode_s,
    double augment_share = 0;  // and of augment_s. Below 0: without it these take longer.
  };

  LoadingCosts costs;
  double cpu_share = 1;        // The part of costs that computes; the rest waits.
  double consumer_busy_s = 0;  // The consumer's own time for a sample: what it does not wait for loading.
  int num_workers = 1;         // 0: the consumer loads.
  int compute_threads = 1;
  int cores = 1;
  double samples_per_second = 0;  // Now, measured.
  std::vector<Transform> transforms;
  std::string gpu;  // Its name, or "unavailable: " and why there is none.
};

// A change that somebody else must decide on, or that cannot be made here.
struct Proposal {
  std::string name;       // "without pad", "augment on the GPU"
  std::string setting;    // "data.transform.pad = 0"; empty: there is none.
  std::string requested;  // What is proposed: "off", "gpu".
  std::string applied;    // What is in force: "on", "cpu".
  std::string reason;     // With its numbers, or why it is not applicable.
  bool applicable = true;
  std::optional<double> predicted_samples_per_second;
};

struct LoadingAdvice {
  LoadingCosts costs;
  std::vector<Proposal> proposals;
};

// Samples a second when a sample's loading costs `sample_s` seconds of the threads. A job goes at the pace of its
// slowest part: the loader's threads together, the consumer, or the cores under both; the measured rate is scaled by
// what this model says of then and now.
double predicted_rate(const LoadingInput& input, double sample_s);
// The same when `num_workers` threads load, and a sample costs what it costs now. Error{invalid_argument}: below 0.
double predicted_rate_of_workers(const LoadingInput& input, int num_workers);

// Proposes to leave out the dearest optional transform, where leaving it out saves 1 % of what a sample costs or more,
// and to transform on the GPU, which is not applicable here: without a device, or as nothing in this program computes
// on one.
LoadingAdvice advise(const LoadingInput& input);

}  // namespace headrace
