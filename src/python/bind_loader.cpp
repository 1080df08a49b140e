#include <fmt/format.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "python/bindings.h"
#include "python/native_loader.h"

namespace headrace::python {

namespace py = pybind11;

void register_loader(py::module_& module) {
  py::class_<NativePass>(module, "LoaderPass", "One pass over a Loader.")
      .def("__iter__", [](py::object self) { return self; })
      .def("__next__", [](NativePass& pass) {
        py::object batch = pass.next();
        if (batch.is_none()) throw py::stop_iteration();
        return batch;
      });

  py::class_<NativeLoader>(module, "Loader", py::dynamic_attr(),
                           R"(Reads, decodes and transforms samples on native threads and yields them as batches.

source is "idx:DIR" (MNIST, Fashion-MNIST) or "folder:DIR" (an ImageFolder of JPEG and PNG files). The keywords are the
keys of a recipe's [data]: batch_size, threads, prefetch_batches, last_batch, shuffle, on_corrupt, cache, cache_mib, and
transform, a dict of the keys of [data.transform]: size, crop, resize, scale, ratio, pad, flip_probability, mean,
deviation (docs/options.md). Besides: split="train" or "test"; seed=0; training, which switches shuffle and random
transforms on and is split == "train" where it is not given.

Each iteration is the next epoch and yields headrace.Batch objects: (images, labels), also by name, over the loader's own
memory. One iteration runs at a time. Bytes depend on seed, epoch and options alone, never on threads.)")
      .def(py::init([](const std::string& source, const py::kwargs& options) {
             return std::make_unique<NativeLoader>(source, options);
           }),
           py::arg("source"))
      .def("__iter__", [](const py::object& self) { return std::make_unique<NativePass>(self); })
      .def("__len__", &NativeLoader::batches)
      .def("state_dict", &NativeLoader::state,
           "Where the next batch stands: epoch and batch, with what must be the same to go on there.")
      .def("load_state_dict", &NativeLoader::load_state, py::arg("state_dict"),
           "The next iteration begins there. A state of other data, another seed or batch size is refused.")
      .def("start_at", &NativeLoader::start_at, py::arg("epoch"), py::arg("batch") = 0,
           "The next iteration begins at this epoch and batch, both from 0.")
      .def(
          "sample",
          [](const NativeLoader& loader, std::int64_t index) {
            const Source& source = loader.source();
            if (index < 0 || index >= source.size()) {
              throw py::index_error(fmt::format("sample {}: there are {} samples", index, source.size()));
            }
            return std::pair(source.sample_name(index), source.label(index));
          },
          py::arg("index"), "Name and label of a sample of the data set: the file, or its place in one.")
      .def("statistics", &NativeLoader::statistics, "Totals since the Loader was made; seconds of threads added up.")
      .def("set_threads", &NativeLoader::set_threads, py::arg("threads"), "Live; changes no byte.")
      .def("set_prefetch_batches", &NativeLoader::set_prefetch_batches, py::arg("batches"), "Live; changes no byte.")
      .def("set_cache", &NativeLoader::set_cache, py::arg("cache"), "\"none\" or \"decoded\". Live; changes no byte.")
      .def_property_readonly("options", &NativeLoader::keywords, "Every keyword with its value in force.")
      .def_property_readonly(
          "batch_size", [](const NativeLoader& loader) { return loader.options().batch_size; }, "Samples in a batch.")
      .def_property_readonly(
          "samples", [](const NativeLoader& loader) { return loader.source().size(); }, "Samples in the data set.")
      .def_property_readonly(
          "classes", [](const NativeLoader& loader) { return loader.source().classes(); }, "Classes of the labels.");
}

}  // namespace headrace::python
