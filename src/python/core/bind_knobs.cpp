#include <headrace/option_fields.h>
#include <headrace/report.h>
#include <headrace/tune.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/knobs/knob.h"
#include "python/core/bindings.h"
#include "python/core/denormals.h"
#include "python/core/given.h"
#include "python/core/keywords.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

// Of an epoch; nullopt: its sampler does not tell.
std::optional<std::int64_t> batches_of(const nb::object& loader) {
  const Py_ssize_t batches = PyObject_Size(loader.ptr());
  if (batches >= 0) return batches;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) nb::raise_python_error();
  PyErr_Clear();
  return std::nullopt;
}

// What the loop's own headrace.Loader tells of itself, by its methods.
void add_loader(KnobContext& context, const nb::object& loader) {
  const auto keywords = nb::cast<nb::dict>(nb::getattr(loader, "options"));
  const bool in_processes = text_of(keywords["worker_type"]) == "process";
  context.loader = in_processes ? LoaderKind::headrace_processes : LoaderKind::headrace;
  set_keywords(fields_of(context.recipe.data), nb::cast<nb::dict>(nb::getattr(loader, "_data_options")));
  // Processes read for more threads than there are of them.
  if (in_processes) context.recipe.data.num_workers = integer_of(keywords["num_workers"]);
  if (!nb::isinstance<nb::str>(keywords["source"])) {
    context.refused.emplace("data.cache", "a data set of your own may give another image each time it is asked");
  } else if (!context.run_steps) {
    context.refused.emplace("data.cache", "the length of the run is not known: give epochs or steps");
  } else if (const auto batches = batches_of(loader); !batches) {
    context.refused.emplace("data.cache", "the length of an epoch is not known: the sampler does not tell it");
  } else {
    context.recipe.train.epochs = std::max<std::int64_t>(1, *context.run_steps / std::max<std::int64_t>(1, *batches));
    std::tie(context.data.cache_share, context.data.scaled_share) =
        nb::cast<std::pair<double, double>>(loader.attr("_data_context")());
  }
}

KnobContext context_of(const Given& given) {
  KnobContext context;
  context.door = Door::python;
  context.live = truth_of(given["live"]);
  apply_settings(context.recipe, given.as<Settings>("process", "texts by key"));
  context.cores = integer_of(given["cores"]);
  context.run_steps = given.as<std::optional<std::int64_t>>("run_steps", "a whole number or None");
  context.refused = given.as<std::map<std::string, std::string, std::less<>>>("refused", "texts by key");
  context.refused_values =
      given.as<std::map<std::pair<std::string, std::string>, std::string>>("refused_values", "texts by key and value");
  context.drops_out = truth_of(given["drops_out"]);
  context.has_replacement = truth_of(given["has_replacement"]);
  context.replacement_draws = truth_of(given["replacement_draws"]);
  context.workers_change_batches = truth_of(given["workers_change_batches"]);
  context.loader_type = text_of(given["loader_type"]);
  const nb::object loader = given["loader"];
  if (!loader.is_none()) {
    add_loader(context, loader);
  } else if (!given["dataloader"].is_none()) {
    context.loader = LoaderKind::torch;
    std::tie(context.recipe.data.num_workers, context.recipe.data.prefetch_batches) =
        given.as<std::pair<std::int64_t, std::int64_t>>("dataloader", "its workers and the batches ahead");
  } else {
    context.loader = LoaderKind::other;
  }
  context.recipe.compute.intra_op_threads = integer_of(given["intra_op_threads"]);
  context.recipe.optimizer.set_implementation(truth_of(given["fused"]) ? OptimizerImplementation::fused
                                                                       : OptimizerImplementation::for_loop);
  context.recipe.tune.budget_s = real_of(given["budget_s"]);
  context.recipe.tune.fixed = given.as<std::vector<std::string>>("fixed", "texts");
  return context;
}

}  // namespace

void register_knobs(nb::module_& module) {
  nb::class_<Candidate>(module, "Candidate", "A change to try, as include/headrace/tune.h has it.")
      .def_ro("name", &Candidate::name)
      .def_ro("sentence", &Candidate::sentence)
      .def_ro("changes", &Candidate::changes, "Settings as TOML text.")
      .def_prop_ro("numerics", [](const Candidate& one) { return std::string(to_string(one.numerics)); })
      .def_ro("resource", &Candidate::resource)
      .def_ro("key", &Candidate::key)
      .def_ro("late_share", &Candidate::late_share)
      .def_rw("prepare_s", &Candidate::prepare_s, "Seconds to make what it needs, until they are measured.")
      .def_rw("prepare_note", &Candidate::prepare_note, "Where they are from, behind them in a sentence.")
      .def_ro("promise_rank", &Candidate::promise_rank, "Lowest first, whatever order they are tried in.");
  nb::class_<Report::NotTried>(module, "NotApplicable", "A change that is not tried on these objects, and why.")
      .def_ro("name", &Report::NotTried::name)
      .def_ro("key", &Report::NotTried::key)
      .def_ro("reason", &Report::NotTried::reason)
      .def("__repr__", [](const Report::NotTried& one) { return "<" + one.name + ": " + one.reason + ">"; });
  nb::class_<Offer>(module, "Offer", "What there is to try, in this order, and why not the rest.")
      .def_ro("candidates", &Offer::candidates)
      .def_ro("not_tried", &Offer::not_tried);
  module.def(
      "offer",
      [](const nb::dict& context, const std::string& bound) {
        return offer(context_of({context, "offer"}), bound);
      },
      nb::arg("context"), nb::arg("bound"),
      "What may be tried on the objects that the context describes, what relieves `bound` first; of a live run "
      "what can take turns between its updates, in the order of the plan.");
  module.def("flushes_denormals", &flushes_denormals,
             "Whether numbers below 1.2e-38 count as 0 in the calling thread.");
  module.def("share_float_mode", &share_float_mode, nb::arg("threads"), nb::call_guard<nb::gil_scoped_release>(),
             "Gives the caller's floating-point mode to so many compute threads of torch; returns why not, or \"\".");
}

}  // namespace headrace::python
