// Which strategies are in force in one tuning: the part of a Job or LiveLoop that knows of them.
#pragma once

#include <headrace/report.h>
#include <headrace/strategy.h>
#include <headrace/tune.h>

#include <memory>
#include <string>
#include <vector>

namespace headrace {

// Give candidates() to the tuner behind the job's own, and have Job::configure() or LiveLoop::apply() begin with set().
// One thread. The destructor undoes nothing: set({}, context) does.
class StrategySwitch {
 public:
  // Error{invalid_argument}: null, or two of the same name.
  explicit StrategySwitch(std::vector<std::shared_ptr<Strategy>> strategies = registered_strategies());
  StrategySwitch(StrategySwitch&&) noexcept;
  ~StrategySwitch();

  // "custom.<name>" of each, in their order.
  std::vector<std::string> keys() const;
  // Those that apply to this job, in their order; into `not_tried` all others, with the reason.
  std::vector<Candidate> candidates(const StrategyContext& context, std::vector<Report::NotTried>& not_tried) const;
  // Makes exactly those hold that are "true" in `settings`: undoes others, the newest first, then applies what does not
  // hold yet, in their order. Returns the settings that are no strategy's.
  //
  // What comes of an apply() or its verify() is thrown as an Error that names the key; Error{invalid_argument}: a key
  // beginning with "custom." that is none of keys(), or a value other than true and false. Those hold then that held
  // before. What an undo() throws is no Error of set(), but ends the strategy: it is in ended(), and asking for it
  // again is Error{unsupported}. Error{cancelled} passes.
  Settings set(const Settings& settings, const StrategyContext& context);
  // By key, why one is not applied again: "undo: broken; what it changed may still hold".
  const Settings& ended() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
