#include "insight/tune/update_kind.h"

#include <fmt/format.h>

#include <algorithm>

namespace headrace {
namespace {

struct Event {
  std::int64_t UpdateKind::*count;
  const char* name;
};
constexpr Event kEvents[] = {{&UpdateKind::epochs_begun, "an epoch began"},
                             {&UpdateKind::epochs_ended, "an epoch ended"},
                             {&UpdateKind::evaluations, "evaluation"},
                             {&UpdateKind::checkpoints, "a checkpoint was written"},
                             {&UpdateKind::failures, "an exception"}};

std::string other_number(std::int64_t count, std::int64_t others, const char* one, const char* many) {
  return fmt::format("{} {}, not {}", count, count == 1 ? one : many, others);
}

// Of two that differ.
std::string difference(const UpdateKind& kind, const UpdateKind& usual) {
  for (const auto& [count, name] : kEvents) {
    if (kind.*count > usual.*count) return name;
  }
  if (kind.micro_batches != usual.micro_batches) {
    return other_number(kind.micro_batches, usual.micro_batches, "micro-batch", "micro-batches");
  }
  if (kind.steps != usual.steps) return other_number(kind.steps, usual.steps, "optimizer step", "optimizer steps");
  for (const auto& [count, name] : kEvents) {
    if (kind.*count < usual.*count) return fmt::format("usual is: {}", name);
  }
  return {};
}

}  // namespace

std::string UsualKind::unlike(const UpdateKind& kind) {
  last_[seen_ % kRemembered] = kind;
  ++seen_;
  const std::size_t same = count(kind);
  if (!kind_ || (kind != *kind_ && same > count(*kind_))) kind_ = kind;
  if (kind != *kind_) return difference(kind, *kind_);
  return same > 1 ? std::string() : "the first of its kind";
}

std::size_t UsualKind::count(const UpdateKind& kind) const noexcept {
  const auto end = last_.begin() + static_cast<std::ptrdiff_t>(std::min(seen_, kRemembered));
  return static_cast<std::size_t>(std::count(last_.begin(), end, kind));
}

}  // namespace headrace
