// A loader's position, to be kept with a checkpoint.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

// Where the next batch stands, and what must be the same where the epoch goes on. The same on every rank that has taken
// as many batches. Plain values, to be kept in any form: 56 bytes and the options.
struct LoaderState {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // Samples of the epoch that were delivered, those of all ranks together.
  std::uint64_t seed = 0;
  std::uint64_t source = 0;  // Source::fingerprint().
  std::int64_t batch_size = 0;
  std::int64_t world_size = 1;
  // Every key that decides samples or bytes, a line each: "data.shuffle = true". One that is missing, as an earlier
  // version did not know it, counts as its default.
  std::string options;
  // Of the GivenOrder of the epoch that runs, a hash; 0: there is none, or no such epoch has begun.
  std::uint64_t order = 0;
};

}  // namespace headrace
