// Strategies beside the knobs of the table.
#pragma once

#include <headrace/strategy_switch.h>

#include <string_view>

#include "app/knobs/knob.h"

namespace headrace {

// Behind all that is offered already. Each is said to relieve `bound`, as a knob that names no resource.
void add_strategies(Offer& offered, const StrategySwitch& strategies, const StrategyContext& context,
                    std::string_view bound);

}  // namespace headrace
