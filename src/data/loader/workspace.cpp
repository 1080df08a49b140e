#include "data/loader/detail/workspace.h"

namespace headrace::detail {

Workspace::Workspace(std::size_t fields, std::int64_t announced_max) {
  announced.reserve(static_cast<std::size_t>(announced_max));
  samples.reserve(kReadTogether);
  for (std::int64_t i = 0; i < kReadTogether; ++i) samples.emplace_back(fields);
}

void Workspace::make_room_for(std::size_t partners) {
  const std::size_t wanted = static_cast<std::size_t>(kReadTogether) + partners, fields = samples.front().size();
  while (samples.size() < wanted) samples.emplace_back(fields);
  while (changed.size() < wanted) changed.emplace_back(fields);
}

std::int64_t Workspace::bytes() const noexcept {
  std::int64_t total = images.bytes() + static_cast<std::int64_t>(rest.capacity());
  if (reads_into_samples) {
    for (const Sample& sample : samples) total += sample.bytes();
  }
  for (const Sample& sample : changed) total += sample.bytes();
  return total;
}

void Workspace::trim() {
  if (bytes() > kKeptMax) images.free_between();
  if (bytes() > kKeptMax) clear();
}

void Workspace::clear() {
  for (Sample& sample : samples) sample.release();
  for (Sample& sample : changed) sample.release();
  rest = std::vector<std::uint8_t>();  // "= {}" would keep the memory.
  images.clear();
}

}  // namespace headrace::detail
