// The order of an epoch that comes from the caller, in place of data.shuffle and data.sampler.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace headrace {

// 8 bytes a position while the epoch runs, 16 where samples repeat. What is drawn for a sample depends on its index,
// and on how often the epoch has had it before: not on where it stands.
struct GivenOrder {
  // Samples of the source by position. One may come several times, or not at all.
  std::vector<std::int64_t> samples{};
  // Where each batch ends, in positions; none is larger than data.batch_size. Empty: batches of data.batch_size, the
  // last one by data.last_batch.
  std::vector<std::int64_t> batch_ends{};
  std::string name = "the order given";  // For messages.
};

// Asked by the thread that begins an epoch, before anything of it is loaded. What it throws goes on; the epoch has not
// begun then. Where one process of several gives its own part of an epoch, data.world_size is 1.
using OrderOfEpoch = std::function<GivenOrder(std::int64_t epoch)>;

}  // namespace headrace
