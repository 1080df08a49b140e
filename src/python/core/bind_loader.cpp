#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "data/source/sample_reader.h"
#include "python/core/bindings.h"
#include "python/core/native_loader.h"
#include "python/core/values.h"

namespace headrace::python {

namespace nb = nanobind;

namespace {

void register_passes(nb::module_& module) {
  nb::class_<NativePass> pass(module, "LoaderEpoch", nb::is_weak_referenceable(),
                              "Iterates over one epoch of a Loader.");
  pass.def("__iter__", [](nb::object self) { return self; })
      .def("__next__",
           [](NativePass& epoch) {
             std::optional<nb::object> batch = epoch.next();
             if (!batch) throw nb::stop_iteration();
             return *std::move(batch);
           })
      .def(
          "request",
          [](const nb::object& self) {
            return std::make_unique<NativeRequest>(self, nb::cast<NativePass&>(self).request());
          },
          "Asks for the next batch without waiting, unless the Loader was made with enable_async_data_loading=False or "
          "has no threads. One request may be open at a time; take it before the next.");
  refuse_pickling(pass, "an epoch of a headrace.Loader cannot be pickled or copied: it is one place in one iteration");

  nb::class_<NativeRequest> request(module, "LoaderRequest", nb::is_weak_referenceable(),
                                    "A batch that was asked for. Await it, or take its result().");
  request
      .def(
          "done", [](const NativeRequest& asked) { return asked.is_there(std::chrono::seconds(0)); },
          "Whether result() would not wait.")
      .def(
          "wait", [](const NativeRequest& asked) { asked.pass().wait(asked); },
          "Waits until result() would not, and takes nothing.")
      .def(
          "result", [](NativeRequest& asked) { return asked.pass().collect(asked); },
          "The batch, or None at the epoch's end. Waits, and raises what the iteration would have raised.")
      .def("__await__",
           [](const nb::object& self) { return imported("headrace._loader", "awaited")(self).attr("__await__")(); });
  refuse_pickling(request,
                  "a batch that was requested of a headrace.Loader cannot be pickled or copied: take its result()");
}

void add_properties(nb::class_<NativeLoader>& bound) {
  bound
      .def_prop_ro("worker_deaths", &NativeLoader::worker_deaths,
                   "How workers died, and on which samples, one line each; the first 100.")
      .def_prop_ro("worker_processes", &NativeLoader::worker_processes, "Process ids of the workers that live.")
      .def_prop_ro("applied", &NativeLoader::applied,
                   "What was asked for and what is in force: (key, requested, applied, reason).")
      .def_prop_ro("options", &NativeLoader::keywords, "Every keyword with its value in force.")
      .def_prop_ro(
          "batch_size", [](const NativeLoader& loader) { return loader.options().batch_size; }, "Samples in a batch.")
      .def_prop_ro("samples", &NativeLoader::samples, "Samples in the data set; an error where it does not tell.")
      .def_prop_ro(
          "num_classes",
          [](const NativeLoader& loader) -> std::optional<std::int64_t> {
            const std::int64_t classes = loader.source().info().num_classes;
            if (classes == kUnknownClasses) return std::nullopt;
            return classes;
          },
          "Classes of the labels; None where a source of your own does not tell.");
}

// What headrace itself asks of a Loader beside what is documented: the Trainer, which is of another extension and has
// Python's objects of this one alone, the table of knobs, and the class in Python over this one.
void add_what_headrace_asks(nb::class_<NativeLoader>& bound) {
  bound
      .def_prop_ro("_takes_orders", &NativeLoader::takes_orders, "Whether a sampler of the user's own gives the order.")
      .def_prop_ro("_data_options", &NativeLoader::data_keywords, "The keys of [data] alone.")
      .def_prop_ro(
          "_class_names", [](const NativeLoader& loader) { return loader.source().info().class_names; },
          "In the order of the labels; empty where the source tells none.")
      .def(
          "_data_context",
          [](const NativeLoader& loader) {
            const DataContext found = loader.data_context();
            return std::pair(found.cache_share, found.scaled_share);
          },
          "DataContext::cache_share and scaled_share (src/app/advice/data_context.h).");
}

constexpr const char* kLoaderText =
    R"(Reads, decodes and transforms samples on native threads and yields them as batches.

source says as a text where the samples lie, as "folder:photos"; or it is an object of your own with __len__ and
__getitem__(index) -> (image, label), another tuple or a dict, as any map-style torch data set: an image is a uint8 array or tensor
(H x W x C), a PIL image or the bytes of a JPEG or PNG file; other fields are arrays, tensors, numbers and str. What they are called, and
which differ in shape, is taken from a few samples (headrace.worker.SourceReader says how). The source may have classes (their number, or
their names) and labels (one a sample). num_workers=N threads call it under the GIL; with worker_type="process" N processes of their own
do, which get it once, by pickle, live as long as the Loader, and are replaced when they die or do not answer.

Each iteration is the next epoch and yields headrace.Batch objects: the fields in their order and by name, over the loader's own
memory: images, labels = batch where these two are all, batch["boxes"] where there are more. One iteration runs at a time. Bytes depend on seed, epoch and options alone, never on workers.)";

}  // namespace

void register_loader(nb::module_& module) {
  register_passes(module);
  nb::class_<NativeLoader> bound(module, "Loader", nb::dynamic_attr(), nb::is_weak_referenceable(), kLoaderText);
  bound
      .def(
          "__init__",
          [](NativeLoader* self, const nb::object& source, const nb::kwargs& options) {
            new (self) NativeLoader(source, options);
          },
          nb::arg("source").none(), nb::arg("options"))
      .def("__iter__", [](const nb::object& self) { return std::make_unique<NativePass>(self); })
      .def("__len__", &NativeLoader::batches)
      .def(
          "state_dict", &NativeLoader::state,
          "Where the next batch stands: epoch and position, in samples of all ranks, with what must be the same there.")
      .def("load_state_dict", &NativeLoader::load_state, nb::arg("state_dict"),
           "The next iteration begins there, with any number of workers or ranks. A state of other data, another seed "
           "or an option that changes batches is refused by name.")
      .def("set_epoch", &NativeLoader::set_epoch, nb::arg("epoch"),
           "The next iteration is this epoch, from its beginning or from where load_state_dict() put it within it.")
      .def("start_at", &NativeLoader::start_at, nb::arg("epoch"), nb::arg("batch") = 0,
           "The next iteration begins at this epoch and batch, both from 0.")
      .def(
          "sample",
          [](const NativeLoader& loader, std::int64_t index) {
            const Source& source = loader.source();
            if (index < 0 || index >= source.size()) {
              const std::string refusal = fmt::format("sample {}: there are {} samples", index, source.size());
              throw nb::index_error(refusal.c_str());
            }
            return std::pair(source.name(index), SampleReader{source}.label(index));
          },
          nb::arg("index"), "Name and label of a sample of the data set: the file, or its place in one.")
      .def("statistics", &NativeLoader::statistics,
           "Totals since the Loader was made; seconds of threads added up. stages: what passed each of them, which one "
           "limits. costs: seconds by part; augment is crop, resize, flip and normalisation, written into the batch in "
           "the same pass, collate what a batch takes beyond that and collate_fn, copy None: the loop's own. "
           "retired_batches: those whose page-locked memory is not used again, because they were dropped while a CUDA "
           "graph was captured.")
      .def(
          "explain", &NativeLoader::explain,
          "transforms: the operations on an image in order, those that run in one pass together (fused), and why not "
          "with those before. The passes over a sample's values as they were taken, with the bytes that each reads "
          "and writes (means of "
          "all samples, None before the first), and the same if each stage were a pass of its own. retired_batches: as "
          "in statistics().")
      .def(
          "advice", &NativeLoader::advice,
          "What a sample's loading costs by part, and proposals: to leave out the dearest optional transform, with the "
          "samples a second predicted then, and to augment on the GPU. Measures for about a second.")
      .def("decisions", &NativeLoader::decisions,
           "What was changed where num_workers, prefetch_batches or cache is AUTOTUNE: batch, at_s, what, from, to, "
           "why, before and after (samples a second), rolled_back. Nothing with auto_tune=False.")
      .def("set_num_workers", &NativeLoader::set_num_workers, nb::arg("num_workers"),
           "Threads, or AUTOTUNE; with worker_type=\"process\" processes. Live; changes no byte.")
      .def("set_prefetch_batches", &NativeLoader::set_prefetch_batches, nb::arg("batches"),
           "Or AUTOTUNE. Live; changes no byte.")
      .def(
          "set_cache", &NativeLoader::set_cache, nb::arg("cache"), nb::arg("keep") = false,
          "\"none\", \"decoded\", \"encoded\" or AUTOTUNE. Live; changes no byte. With keep what is in force now stays "
          "in memory while it is off, for comparing the two.");
  add_properties(bound);
  add_what_headrace_asks(bound);
  refuse_pickling(
      bound,
      "a headrace.Loader cannot be pickled or copied: its threads and its memory are this process' own. Make one "
      "where it is wanted, of the same arguments; state_dict() and load_state_dict() carry its place over");
}

}  // namespace headrace::python
