// What fit() knows of a run beside its trainer, kept in checkpoints: how its evaluations went, and an epoch that is not
// closed yet.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>

namespace headrace::python {

inline constexpr const char* kLoss = "loss";  // The figure that every evaluation has.

// Everything here runs under the GIL.
struct FitRecord {
  std::string monitor;                     // The figure that evaluations are compared by; empty: none was named yet.
  std::optional<double> best_score;        // Larger is better.
  std::int64_t epochs_without_better = 0;  // In a row, up to the last one that was evaluated.
  // Result of the last epoch while its evaluation and on_epoch are still to come: a dict; else None.
  pybind11::object open_epoch = pybind11::none();

  // Names the figure: of the loss, and of any with "-" before its name, less is better, else more. After another
  // figure than before, earlier evaluations no longer count.
  void watch(const std::string& figure);
  // Counts one more evaluation. Returns whether it is better than the best before it, by more than a millionth of that;
  // a figure that is not finite never is. Error{invalid_argument}, with nothing counted, names the figures there are
  // where the monitor is none of them.
  bool note(const pybind11::dict& evaluation);

  // To values that JSON can hold, and back; from None: an empty record.
  pybind11::dict to_dict() const;
  static FitRecord from(const pybind11::object& kept);
};

}  // namespace headrace::python
