// Whether NEW still computes what OLD does: faster and wrong is no improvement.
#pragma once

#include <string>
#include <vector>

#include "insight/compare/compare_verdict.h"

namespace headrace {

// Of two runs' outputs of one number: the largest difference, relative to the largest old one. Of another number, or
// where an old one is 0 and all are: infinity unless all are equal.
double output_distance(const std::vector<double>& old_outputs, const std::vector<double>& new_outputs);

// Collects the outputs of pairs. What counts as equal is what OLD's own runs differ by: four times the largest distance
// between any two of them, and never less than 1e-5. It takes three pairs to know that where they are alike, and eight
// where they differ: of fewer the largest distance is too often small by chance.
class OutputGuard {
 public:
  void add(const std::vector<double>& old_outputs, const std::vector<double>& new_outputs);
  bool is_told() const noexcept { return pairs_ > 0; }
  // There are pairs enough for a judgement, or NEW is wrong whatever they are.
  bool is_judged() const;
  // Empty: all is well, nobody told outputs, or they cannot be judged yet. Else what was wanted and what was found.
  std::string fault() const;
  // Fills in has_outputs and wrong_outputs; a remark where too few pairs told them.
  void tell(CompareVerdict& verdict) const;

 private:
  int pairs_wanted() const;
  void widen(const std::vector<double>& old_outputs);

  std::vector<double> low_, high_;  // Of OLD's runs, by output.
  int pairs_ = 0;
  double own_distance_ = 0;  // Of any two of OLD's runs, the largest.
  double distance_ = 0;      // Of NEW's from the old one of its pair, the largest.
  std::string missing_;      // A fault that no tolerance covers.
};

}  // namespace headrace
