// Which updates of a loop may be compared by their times.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

// How often something happened in an update. Updates of one kind differ in time by chance and by settings alone.
struct UpdateKind {
  std::int64_t epochs_begun = 0;
  std::int64_t epochs_ended = 0;
  std::int64_t evaluations = 0;  // Calls of the models without gradients, or in eval mode.
  std::int64_t checkpoints = 0;
  std::int64_t failures = 0;
  // Batches of the loader, or calls with gradients where it gave none; those within one step() are one.
  std::int64_t micro_batches = 0;
  std::int64_t steps = 0;  // Of all optimizers.

  friend bool operator==(const UpdateKind&, const UpdateKind&) = default;
};

// The kind that most of the last 32 updates are of. What happens in each of them, as the state_dict() of an EMA, is
// usual.
class UsualKind {
 public:
  // Takes note of an update's kind. Why it cannot be compared with the others; empty: it can.
  std::string unlike(const UpdateKind& kind);
  const std::optional<UpdateKind>& kind() const noexcept { return kind_; }  // nullopt: no update was seen.

 private:
  static constexpr std::size_t kRemembered = 32;  // Updates.
  std::size_t count(const UpdateKind& kind) const noexcept;

  std::optional<UpdateKind> kind_;
  std::array<UpdateKind, kRemembered> last_{};  // A ring.
  std::size_t seen_ = 0;                        // Updates in all.
};

}  // namespace headrace
