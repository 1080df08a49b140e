#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "data/source/sample_reader.h"
#include "python/bindings.h"
#include "python/native_loader.h"

namespace headrace::python {

namespace py = pybind11;

namespace {

void register_passes(py::module_& module) {
  py::class_<NativePass>(module, "LoaderEpoch", "Iterates over one epoch of a Loader.")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__",
           [](NativePass& pass) {
             std::optional<py::object> batch = pass.next();
             if (!batch) throw py::stop_iteration();
             return *std::move(batch);
           })
      .def(
          "request",
          [](const py::object& self) {
            return std::make_unique<NativeRequest>(self, self.cast<NativePass&>().request());
          },
          "Asks for the next batch without waiting, unless the Loader was made with enable_async_data_loading=False or "
          "has no threads. One request may be open at a time; take it before the next.");

  py::class_<NativeRequest>(module, "LoaderRequest", "A batch that was asked for. Await it, or take its result().")
      .def(
          "done", [](const NativeRequest& request) { return request.is_there(std::chrono::seconds(0)); },
          "Whether result() would not wait.")
      .def(
          "wait", [](const NativeRequest& request) { request.pass().wait(request); },
          "Waits until result() would not, and takes nothing.")
      .def(
          "result", [](NativeRequest& request) { return request.pass().collect(request); },
          "The batch, or None at the epoch's end. Waits, and raises what the iteration would have raised.")
      .def("__await__", [](const py::object& self) {
        return py::module_::import("headrace._loader").attr("awaited")(self).attr("__await__")();
      });
}

void add_properties(py::class_<NativeLoader>& bound) {
  bound
      .def_property_readonly("worker_deaths", &NativeLoader::worker_deaths,
                             "How workers died, and on which samples, one line each; the first 100.")
      .def_property_readonly("worker_processes", &NativeLoader::worker_processes,
                             "Process ids of the workers that live.")
      .def_property_readonly("applied", &NativeLoader::applied,
                             "What was asked for and what is in force: (key, requested, applied, reason).")
      .def_property_readonly("options", &NativeLoader::keywords, "Every keyword with its value in force.")
      .def_property_readonly(
          "batch_size", [](const NativeLoader& loader) { return loader.options().batch_size; }, "Samples in a batch.")
      .def_property_readonly("samples", &NativeLoader::samples,
                             "Samples in the data set; an error where it does not tell.")
      .def_property_readonly(
          "num_classes",
          [](const NativeLoader& loader) -> std::optional<std::int64_t> {
            const std::int64_t classes = loader.source().info().num_classes;
            if (classes == kUnknownClasses) return std::nullopt;
            return classes;
          },
          "Classes of the labels; None where a source of your own does not tell.");
}

constexpr const char* kLoaderText =
    R"(Reads, decodes and transforms samples on native threads and yields them as batches.

source is a str as the key data.source has it ("folder:DIR", an ImageFolder of JPEG and PNG files; "idx:DIR", MNIST or Fashion-MNIST;
the others stand in docs/options.md), or an object of your own with __len__ and
__getitem__(index) -> (image, label), another tuple or a dict, as any map-style torch data set: an image is a uint8 array or tensor
(H x W x C), a PIL image or the bytes of a JPEG or PNG file; other fields are arrays, tensors, numbers and str. What they are called, and
which differ in shape, is taken from a few samples (headrace.worker.SourceReader says how); fields=("image", "boxes") names those of a
tuple, and fields={"boxes": headrace.Field("float32", (-1, 4))} says what a field is. The source may have classes (their number, or
their names) and labels (one a sample). num_workers=N threads call it
under the GIL; with worker_type="process" N processes of their own do, which get it once, by pickle, live as long as the
Loader, and are replaced when they die or do not answer within worker_timeout_s=300. The keywords are the
keys of a recipe's [data]: val_fraction, batch_size, num_workers, num_workers_max, prefetch_batches, prefetch_mib, auto_tune, last_batch,
shuffle, shuffle_window, buckets, bucket_by, sampler, weights, world_size, rank, in_order, on_corrupt, max_pixels, max_sample_bytes, cache,
cache_mib, index, scale_decode, and transform, a dict of the keys of [data.transform]: size, crop, resize, scale, ratio, pad,
flip_probability, mean, std, dtype, layout (docs/options.md); or in its place transforms, a list of operations of headrace.transforms,
which have the names and parameters of torchvision.transforms.v2 (RandomResizedCrop(224)), or a dict of these
({"name": "RandomResizedCrop", "size": 224}), and eval_transforms, those of evaluation where they do not follow from transforms. Besides: split="train", "val" or "test" (an object of your own is
read whole as any of them, but with val_fraction above 0, which parts it into train and val); seed=0;
training, which switches shuffle and random transforms on and is split == "train" where it is not given; collate_fn,
which is given a list of samples, those left out that do not count, and returns the batch, whatever it is; worker_init_fn,
called with its number, from 0, in each worker process before the source is read there;
persistent_workers=True, False gives each epoch threads and processes of its own; enable_async_data_loading=True, False lets
request() wait for the batch.

Each iteration is the next epoch and yields headrace.Batch objects: the fields in their order and by name, over the loader's own
memory: images, labels = batch where these two are all, batch["boxes"] where there are more. One iteration runs at a time. Bytes depend on seed, epoch and options alone, never on workers.)";

}  // namespace

void register_loader(py::module_& module) {
  register_passes(module);
  py::class_<NativeLoader> bound(module, "Loader", py::dynamic_attr(), kLoaderText);
  bound
      .def(py::init([](const py::object& source, const py::kwargs& options) {
             return std::make_unique<NativeLoader>(source, options);
           }),
           py::arg("source"))
      .def("__iter__", [](const py::object& self) { return std::make_unique<NativePass>(self); })
      .def("__len__", &NativeLoader::batches)
      .def(
          "state_dict", &NativeLoader::state,
          "Where the next batch stands: epoch and position, in samples of all ranks, with what must be the same there.")
      .def("load_state_dict", &NativeLoader::load_state, py::arg("state_dict"),
           "The next iteration begins there, with any number of workers or ranks. A state of other data, another seed "
           "or an option that changes batches is refused by name.")
      .def("set_epoch", &NativeLoader::set_epoch, py::arg("epoch"),
           "The next iteration is this epoch, from its beginning or from where load_state_dict() put it within it.")
      .def("start_at", &NativeLoader::start_at, py::arg("epoch"), py::arg("batch") = 0,
           "The next iteration begins at this epoch and batch, both from 0.")
      .def(
          "sample",
          [](const NativeLoader& loader, std::int64_t index) {
            const Source& source = loader.source();
            if (index < 0 || index >= source.size()) {
              throw py::index_error(fmt::format("sample {}: there are {} samples", index, source.size()));
            }
            return std::pair(source.name(index), SampleReader{source}.label(index));
          },
          py::arg("index"), "Name and label of a sample of the data set: the file, or its place in one.")
      .def("statistics", &NativeLoader::statistics,
           "Totals since the Loader was made; seconds of threads added up. stages: what passed each of them, which one "
           "limits. costs: seconds by part; augment is crop, resize, flip and normalisation, written into the batch in "
           "the same pass, collate what a batch takes beyond that and collate_fn, copy None: the loop's own.")
      .def("explain", &NativeLoader::explain,
           "transforms: the operations on an image in order, those that run in one pass together (fused), and why not "
           "with those before. The passes over a sample's values as they were taken, with the bytes that each reads "
           "and writes (means of "
           "all samples, None before the first), and the same if each stage were a pass of its own.")
      .def(
          "advice", &NativeLoader::advice,
          "What a sample's loading costs by part, and proposals: to leave out the dearest optional transform, with the "
          "samples a second predicted then, and to augment on the GPU. Measures for about a second.")
      .def("decisions", &NativeLoader::decisions,
           "What was changed where num_workers, prefetch_batches or cache is AUTOTUNE: batch, at_s, what, from, to, "
           "why, before and after (samples a second), rolled_back. Nothing with auto_tune=False.")
      .def("set_num_workers", &NativeLoader::set_num_workers, py::arg("num_workers"),
           "Threads, or AUTOTUNE; with worker_type=\"process\" processes. Live; changes no byte.")
      .def("set_prefetch_batches", &NativeLoader::set_prefetch_batches, py::arg("batches"),
           "Or AUTOTUNE. Live; changes no byte.")
      .def(
          "set_cache", &NativeLoader::set_cache, py::arg("cache"), py::arg("keep") = false,
          "\"none\", \"decoded\", \"encoded\" or AUTOTUNE. Live; changes no byte. With keep what is in force now stays "
          "in memory while it is off, for comparing the two.");
  add_properties(bound);
}

}  // namespace headrace::python
