#include <headrace/option_fields.h>
#include <headrace/report.h>
#include <headrace/tune.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "app/knobs/knob.h"
#include "engine/assembly/process_settings.h"
#include "python/any_loader.h"
#include "python/bindings.h"
#include "python/keywords.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// What the loop's own headrace.Loader tells of itself, by its methods.
void add_loader(KnobContext& context, const py::object& loader) {
  const py::dict keywords = loader.attr("options");
  const bool in_processes = keywords["worker_type"].cast<std::string>() == "process";
  context.loader = in_processes ? LoaderKind::headrace_processes : LoaderKind::headrace;
  set_keywords(fields_of(context.recipe.data), loader.attr("_data_options"));
  // Processes read for more threads than there are of them.
  if (in_processes) context.recipe.data.num_workers = keywords["num_workers"].cast<std::int64_t>();
  if (!py::isinstance<py::str>(keywords["source"])) {
    context.refused.emplace("data.cache", "a data set of your own may give another image each time it is asked");
  } else if (!context.run_steps) {
    context.refused.emplace("data.cache", "the length of the run is not known: give epochs or steps");
  } else if (const auto batches = AnyLoader(loader).batches(); !batches) {
    context.refused.emplace("data.cache", "the length of an epoch is not known: the sampler does not tell it");
  } else {
    context.recipe.train.epochs = std::max<std::int64_t>(1, *context.run_steps / std::max<std::int64_t>(1, *batches));
    std::tie(context.data.cache_share, context.data.scaled_share) =
        loader.attr("_data_context")().cast<std::tuple<double, double>>();
  }
}

KnobContext context_of(const py::dict& given) {
  KnobContext context;
  context.door = Door::python;
  context.live = given["live"].cast<bool>();
  apply_settings(context.recipe, process_settings());
  context.cores = given["cores"].cast<std::int64_t>();
  context.run_steps = given["run_steps"].cast<std::optional<std::int64_t>>();
  context.refused = given["refused"].cast<std::map<std::string, std::string, std::less<>>>();
  context.refused_values = given["refused_values"].cast<std::map<std::pair<std::string, std::string>, std::string>>();
  context.drops_out = given["drops_out"].cast<bool>();
  context.has_replacement = given["has_replacement"].cast<bool>();
  context.replacement_draws = given["replacement_draws"].cast<bool>();
  context.workers_change_batches = given["workers_change_batches"].cast<bool>();
  context.loader_type = given["loader_type"].cast<std::string>();
  const py::object loader = given["loader"], dataloader = given["dataloader"];
  if (!loader.is_none()) {
    add_loader(context, loader);
  } else if (!dataloader.is_none()) {
    context.loader = LoaderKind::torch;
    std::tie(context.recipe.data.num_workers, context.recipe.data.prefetch_batches) =
        dataloader.cast<std::tuple<std::int64_t, std::int64_t>>();
  } else {
    context.loader = LoaderKind::other;
  }
  context.recipe.compute.intra_op_threads = given["intra_op_threads"].cast<std::int64_t>();
  context.recipe.optimizer.set_implementation(given["fused"].cast<bool>() ? OptimizerImplementation::fused
                                                                          : OptimizerImplementation::for_loop);
  context.recipe.tune.budget_s = given["budget_s"].cast<double>();
  context.recipe.tune.fixed = given["fixed"].cast<std::vector<std::string>>();
  return context;
}

}  // namespace

void register_knobs(py::module_& module) {
  py::class_<Candidate>(module, "Candidate", "A change to try, as include/headrace/tune.h has it.")
      .def_readonly("name", &Candidate::name)
      .def_readonly("sentence", &Candidate::sentence)
      .def_readonly("changes", &Candidate::changes, "Settings as TOML text.")
      .def_property_readonly("numerics", [](const Candidate& one) { return std::string(to_string(one.numerics)); })
      .def_readonly("resource", &Candidate::resource)
      .def_readonly("key", &Candidate::key)
      .def_readonly("late_share", &Candidate::late_share)
      .def_readwrite("prepare_s", &Candidate::prepare_s, "Seconds to make what it needs, until they are measured.")
      .def_readwrite("prepare_note", &Candidate::prepare_note, "Where they are from, behind them in a sentence.")
      .def_readonly("promise_rank", &Candidate::promise_rank, "Lowest first, whatever order they are tried in.");
  py::class_<Report::NotTried>(module, "NotApplicable", "A change that is not tried on these objects, and why.")
      .def_readonly("name", &Report::NotTried::name)
      .def_readonly("key", &Report::NotTried::key)
      .def_readonly("reason", &Report::NotTried::reason);
  py::class_<Offer>(module, "Offer", "What there is to try, in this order, and why not the rest.")
      .def_readonly("candidates", &Offer::candidates)
      .def_readonly("not_tried", &Offer::not_tried);
  module.def(
      "offer", [](const py::dict& context, const std::string& bound) { return offer(context_of(context), bound); },
      py::arg("context"), py::arg("bound"),
      "What may be tried on the objects that the context describes, what relieves `bound` first; of a live run "
      "what can take turns between its updates, in the order of the plan.");
  module.def("process_settings", &process_settings, "Settings of the whole process that are knobs, as TOML text.");
  module.def(
      "apply_process_setting",
      [](const std::string& key, const std::string& value) {
        const Applied applied = apply_process_setting(key, value);
        return std::tuple(applied.requested, applied.applied, applied.reason);
      },
      py::arg("key"), py::arg("value"), "Applies one of them; returns requested, applied and why they differ.");
}

}  // namespace headrace::python
