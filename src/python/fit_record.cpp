#include "python/fit_record.h"

#include <pybind11/stl.h>

#include <cmath>
#include <utility>
#include <vector>

#include "core/base/fail.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Relative to the best: an evaluation is better by more than this alone. Figures are means over the samples of float32
// means of batches: with batches of unequal size the same number of right answers gives other last digits, depending on
// the batches that they fall into.
constexpr double kLeastGain = 1e-6;
constexpr const char* kSamples = "samples";  // The entry of an evaluation that is no figure.

double score_of(const std::string& watched, const py::dict& evaluation) {
  const bool is_negated = watched.starts_with('-');
  const std::string name = watched.substr(is_negated ? 1 : 0);
  if (name == kSamples || !evaluation.contains(name)) {
    std::vector<std::string> figures;
    for (const auto& [key, value] : evaluation) {
      if (auto figure = py::str(key).cast<std::string>(); figure != kSamples) figures.push_back(std::move(figure));
    }
    fail(ErrorCode::invalid_argument, "python: fit: monitor: wanted {}, found {}", fmt::join(figures, " | "), name);
  }
  const auto figure = evaluation[py::str(name)].cast<double>();
  return is_negated || name == kLoss ? -figure : figure;
}

}  // namespace

void FitRecord::watch(const std::string& figure) {
  if (figure == monitor) return;
  monitor = figure;
  best_score.reset();
  epochs_without_better = 0;
}

bool FitRecord::note(const py::dict& evaluation) {
  const double score = score_of(monitor, evaluation);
  const bool is_better =
      std::isfinite(score) && (!best_score || score - *best_score > kLeastGain * std::abs(*best_score));
  if (is_better) best_score = score;
  epochs_without_better = is_better ? 0 : epochs_without_better + 1;
  return is_better;
}

py::dict FitRecord::to_dict() const {
  py::dict kept;
  kept["monitor"] = monitor;
  kept["best_score"] = best_score;
  kept["epochs_without_better"] = epochs_without_better;
  kept["open_epoch"] = open_epoch;
  return kept;
}

FitRecord FitRecord::from(const py::object& kept) {
  FitRecord record;
  if (kept.is_none()) return record;
  record.monitor = kept["monitor"].cast<std::string>();
  record.best_score = kept["best_score"].cast<std::optional<double>>();
  record.epochs_without_better = kept["epochs_without_better"].cast<std::int64_t>();
  record.open_epoch = kept["open_epoch"];
  return record;
}

}  // namespace headrace::python
