#include "python/batch_bytes.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <unordered_set>

#include "python/any_loader.h"
#include "python/tensors_in.h"

namespace headrace::python {
namespace {

namespace py = pybind11;

// Sums the bytes of storages that were not met before.
class StorageSum {
 public:
  // Of one tensor; 0 where its storage is known already or not on the CPU.
  std::int64_t add(const at::Tensor& tensor);

 private:
  bool is_new(const void* storage);

  // A batch has a few, which are looked through, and allocates nothing; then all are in the set.
  std::array<const void*, 8> few_{};
  std::size_t few_size_ = 0;
  std::unordered_set<const void*> many_;
};

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

}  // namespace

std::int64_t batch_bytes(py::handle batch) {
  if (is_of_loader(batch)) return 0;
  StorageSum known;
  std::int64_t bytes = 0;
  find_tensor(batch, [&](const at::Tensor& tensor) {
    bytes += known.add(tensor);
    return false;
  });
  return bytes;
}

}  // namespace headrace::python
