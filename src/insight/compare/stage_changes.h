// Which part of a step has changed, of arms that were run in pairs.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "insight/compare/compare_verdict.h"

namespace headrace {

class StageChanges {
 public:
  // Seconds a step by stage; a pair that lacks the stages of one arm tells nothing.
  void add(const std::map<std::string, double>& old_s, const std::map<std::string, double>& new_s);
  // Of the stages that both arms told in each counted pair; the largest change first.
  std::vector<StageChange> changes() const;

 private:
  struct Stage {
    std::vector<double> old_s, new_s, shares;
  };
  std::map<std::string, Stage> stages_;
  std::size_t pairs_ = 0;
};

}  // namespace headrace
