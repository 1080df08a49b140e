#include "app/knobs/strategy_offer.h"

#include <utility>

namespace headrace {

void add_strategies(Offer& offered, const StrategySwitch& strategies, const StrategyContext& context,
                    std::string_view bound) {
  for (Candidate& candidate : strategies.candidates(context, offered.not_tried)) {
    candidate.resource = bound;
    offered.candidates.push_back(std::move(candidate));
  }
}

}  // namespace headrace
