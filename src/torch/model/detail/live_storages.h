// Memory that operators make and that is held still: what a graph keeps, on any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace headrace {

// A storage, held by nobody on its account.
class StorageSeen {
 public:
  explicit StorageSeen(const at::Tensor& tensor);  // Of one with a storage.
  bool is_live() const { return !storage_.expired(); }
  std::int64_t bytes() const { return bytes_; }
  // Operators make some outputs without bytes, and give them their size afterwards.
  void see_again(const at::Tensor& tensor) { bytes_ = static_cast<std::int64_t>(tensor.storage().nbytes()); }

 private:
  c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  std::int64_t bytes_;
};

// For its life, notes the storages of what operators of its thread return, on one device. Made and ended by one thread;
// one at a time on it. Each operator then pays some 1 us.
class LiveStorages {
 public:
  // Those of `older` are not counted, which operators return, too: views of parameters, buffers changed in place.
  LiveStorages(at::Device device, const std::vector<at::Tensor>& older);
  ~LiveStorages();
  LiveStorages(const LiveStorages&) = delete;
  LiveStorages& operator=(const LiveStorages&) = delete;

  std::int64_t bytes() const;  // Of those that anybody holds now, each storage once. Goes through all that were noted.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
