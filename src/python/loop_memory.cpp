#include "python/loop_memory.h"

#include <algorithm>
#include <span>
#include <utility>

#include "core/base/clock.h"
#include "python/any_loader.h"
#include "python/tensor_object.h"
#include "python/tensors_in.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

constexpr std::int64_t kNoteEvery_ns = 200'000'000;
constexpr std::array<const char*, 4> kNames{"parameters", "gradients", "optimizer", "batches"};

void add_new(std::vector<py::object>& known, const py::object& object) {
  const bool is_known = std::any_of(known.begin(), known.end(), [&](const py::object& one) { return one.is(object); });
  if (!is_known) known.push_back(object);
}

// Whether it is time again; the first time always is.
bool is_due(std::int64_t& noted_ns) {
  const std::int64_t now_ns = monotonic_ns();
  if (noted_ns != 0 && now_ns - noted_ns < kNoteEvery_ns) return false;
  noted_ns = now_ns;
  return true;
}

}  // namespace

std::int64_t StorageSum::add(const at::Tensor& tensor) {
  if (!tensor.device().is_cpu()) return 0;
  if (tensor.layout() == at::kSparse) return add(tensor._indices()) + add(tensor._values());
  if (!tensor.has_storage()) return 0;
  const at::Storage& storage = tensor.storage();
  return is_new(storage.unsafeGetStorageImpl()) ? static_cast<std::int64_t>(storage.nbytes()) : 0;
}

bool StorageSum::is_new(const void* storage) {
  if (!many_.empty()) return many_.insert(storage).second;
  const std::span known = std::span(few_).first(few_size_);
  if (std::find(known.begin(), known.end(), storage) != known.end()) return false;
  if (few_size_ < few_.size()) {
    few_[few_size_++] = storage;
  } else {
    many_.insert(known.begin(), known.end());
    many_.insert(storage);
  }
  return true;
}

std::int64_t StorageSum::add_all(py::handle value) {
  std::int64_t bytes = 0;
  find_tensor(value, [&](const at::Tensor& tensor) {
    bytes += add(tensor);
    return false;
  });
  return bytes;
}

std::int64_t batch_bytes(py::handle batch) {
  return is_of_loader(batch) ? 0 : StorageSum{}.add_all(batch);
}

void LoopMemory::add_model(const py::object& object) {
  add_new(models_, object);
}

void LoopMemory::add_optimizer(const py::object& object) {
  add_new(optimizers_, object);
}

void LoopMemory::note_batch(py::handle batch) {
  if (is_due(batch_noted_ns_)) bytes_[batches] = batch_bytes(batch);
}

void LoopMemory::note_objects() {
  if ((models_.empty() && optimizers_.empty()) || !is_due(objects_noted_ns_)) return;
  std::vector<at::Tensor> tensors;
  const auto add = [&tensors](py::handle list) {
    for (const py::handle tensor : list) tensors.push_back(tensor_of(tensor, "a parameter"));
  };
  for (const py::object& model : models_) {
    add(model.attr("parameters")());
    add(model.attr("buffers")());
  }
  for (const py::object& one : optimizers_) {
    for (const py::handle group : one.attr("param_groups")) add(group["params"]);
  }
  StorageSum known;
  std::int64_t held = 0, of_gradients = 0, of_state = 0;
  for (const at::Tensor& tensor : tensors) held += known.add(tensor);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_leaf() && tensor.grad().defined()) of_gradients += known.add(tensor.grad());
  }
  for (const py::object& one : optimizers_) of_state += known.add_all(one.attr("state"));
  bytes_[parameters] = held;
  bytes_[gradients] = of_gradients;
  if (!optimizers_.empty()) bytes_[optimizer] = of_state;
}

std::vector<AccountBytes> LoopMemory::counted() const {
  std::vector<AccountBytes> classes = account_bytes();
  for (std::size_t i = 0; i < kClasses; ++i) {
    const std::int64_t bytes = bytes_[i];
    if (bytes == kNobody) continue;
    const auto known =
        std::find_if(classes.begin(), classes.end(), [&](const AccountBytes& one) { return one.name == kNames[i]; });
    if (known == classes.end()) {
      classes.push_back({kNames[i], bytes});
    } else {  // A Loader's batches are its own; its Trainers have the objects that are known here.
      known->bytes = i == batches ? known->bytes + bytes : bytes;
    }
  }
  return classes;
}

}  // namespace headrace::python
