// The order in which the optimizers of a loop step, found from the steps themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// Where the user's iteration ends if several optimizers step in it: behind the G of a GAN's D D G. Of one optimizer
// alone each step is an iteration from the first on.
//
// The order is the shortest that the last 12 steps repeat, or the last two iterations where these are longer. An
// iteration begins with the step before which the loop took a batch; where that tells nothing, with the first step of
// all, if everything since then repeats the order; else behind the optimizer that steps least often. A step that is
// left out (a GradScaler met infinities) or made twice moves the place in the order and nothing else. An optimizer that
// was not in the order lets it be found anew, from its own step on. Optimizers are numbers below their count.
class UpdateCycle {
 public:
  explicit UpdateCycle(std::size_t optimizers);

  // Whether the last step was the last of an iteration.
  bool has_ended() const noexcept { return !order_.empty() && next_ == 0; }
  // Whether this optimizer's step would end the iteration, if it were made now. False while the order is unknown.
  bool ends_with(std::size_t optimizer) const noexcept;
  // A step has been made, `batches` having been taken from the loader so far. Returns how many iterations are known to
  // have ended since the last call: 0 or 1, and more when the order has just been found.
  std::int64_t step(std::size_t optimizer, std::int64_t batches);
  // Why there is no order; empty: there is one, or it is too early to tell.
  const std::string& problem() const noexcept { return problem_; }

 private:
  std::optional<std::size_t> place_of(std::size_t optimizer) const noexcept;
  std::int64_t learn(std::size_t optimizer, std::int64_t batches);
  std::optional<std::size_t> shortest() const;
  std::int64_t begin(std::size_t length);

  std::vector<std::size_t> order_;
  std::size_t next_ = 0;            // Place in the order of the step to come.
  std::vector<std::size_t> steps_;  // Made while the order is not known.
  std::vector<char> takes_batch_;   // Of each of them, whether a batch was taken before it.
  bool saw_first_ = true;           // The first of them was the first of all.
  std::int64_t batches_ = 0;
  std::string problem_;
};

}  // namespace headrace
