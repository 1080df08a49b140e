// A change of one's own that is tried as headrace's own changes are: listed with them, checked for its numerics,
// measured in pairs, and undone unless it pays. May change until version 1.0.
//
// Register it before the tuning begins. hr.tune and hr.autotune in the same process offer what is registered behind
// headrace's own changes, and so does headrace tune with what the libraries of tune.strategies register. A Job or
// LiveLoop of one's own applies it by a StrategySwitch (headrace/strategy_switch.h).
#pragma once

#include <headrace/options/tune.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

class Trainer;

// What is tuned, as far as a strategy may look at it and work on it; the same in all calls of one tuning. A program
// that tunes a job of its own derives from it to hand over more.
struct StrategyContext {
  virtual ~StrategyContext() = default;

  // The run goes on while it is tuned: apply() and undo() are called between two of its updates, and around the replay
  // of a kept call. Else on the objects of trials, which begin from one state.
  bool live = false;
  Trainer* trainer = nullptr;  // Of a recipe; null elsewhere.
};

// One change, on or off. Its functions are called by the thread that tunes, one at a time.
//
// Whatever std::exception they throw is the outcome of this change alone: it is reported as failed with the first line
// of the message, undone, and the tuning goes on. Only Error{cancelled} ends the tuning. What apply() and undo() take
// is measured with the change. They draw no random numbers that the run draws, too.
class Strategy {
 public:
  virtual ~Strategy() = default;

  // In tables, the ledger and `only`; the change sets the key "custom.<name>". 1 to 40 of a to z, 0 to 9, _ and -, a
  // letter first. Valid as long as the strategy, and always the same.
  virtual std::string_view name() const noexcept = 0;
  virtual std::string sentence() const = 0;  // What it changes, for a person.
  // What it may do to the numbers. The tuner checks that it does no more, and keeps nothing looser than is allowed.
  virtual NumericClass numerics() const noexcept { return NumericClass::rounding; }
  // Why it does not apply to this job, for a person, without a full stop; empty: it does. Changes nothing. May be asked
  // more than once.
  virtual std::string why_not(const StrategyContext& /*context*/) const { return {}; }
  // Makes it hold. Often called many times in a tuning, each time followed by undo() unless the change is kept.
  virtual void apply(const StrategyContext& context) = 0;
  // Makes everything as it was before apply(). Called once for each apply(), one that threw among them. Where it
  // throws, the strategy is not applied again, and what is reported says that what it changed may still hold.
  virtual void undo(const StrategyContext& context) = 0;
  // Called behind the first apply() of a tuning: what is wrong, for a person; empty: all is right. Where something is,
  // the change has failed.
  virtual std::string verify(const StrategyContext& /*context*/) { return {}; }
};

// Both from any thread. A tuning tries what was registered when it began, and keeps it alive to its end.
//
// Error{invalid_argument}: null, no sentence, or a name of another form, of one that is registered or of a change of
// headrace's own.
void register_strategy(std::shared_ptr<Strategy> strategy);
void unregister_strategy(std::string_view name);                 // Error{not_found}: none of this name is registered.
std::vector<std::shared_ptr<Strategy>> registered_strategies();  // In the order of their registration.

}  // namespace headrace

// Not headrace's: a library that tune.strategies names defines it, and registers there what it has.
extern "C" void headrace_register_strategies();
