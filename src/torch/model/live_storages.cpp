#include "torch/model/detail/live_storages.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <set>
#include <unordered_map>

#include "core/base/fail.h"

namespace headrace {

StorageSeen::StorageSeen(const at::Tensor& tensor)
    : storage_(tensor.storage().getWeakStorageImpl()), bytes_(static_cast<std::int64_t>(tensor.storage().nbytes())) {}

struct LiveStorages::Impl {
  at::Device device;
  std::set<const c10::StorageImpl*> older;
  // By address, which no other storage gets while its entry is there.
  std::unordered_map<const c10::StorageImpl*, StorageSeen> seen{};
  at::CallbackHandle handle{};

  static thread_local Impl* of_this_thread;

  static std::unique_ptr<at::ObserverContext> began(const at::RecordFunction&) { return nullptr; }

  static void ended(const at::RecordFunction& operation, at::ObserverContext*) {
    if (of_this_thread == nullptr) return;
    for (const c10::IValue& value : operation.outputs()) of_this_thread->note(value);
  }

  void note(const c10::IValue& value) {
    if (value.isTensor()) {
      note(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) note(tensor);
    }
  }

  void note(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.device() != device) return;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (older.contains(storage)) return;
    const auto [entry, is_new] = seen.try_emplace(storage, tensor);
    if (!is_new) entry->second.see_again(tensor);
  }
};

thread_local LiveStorages::Impl* LiveStorages::Impl::of_this_thread = nullptr;

LiveStorages::LiveStorages(at::Device device, const std::vector<at::Tensor>& older)
    : impl_(std::make_unique<Impl>(Impl{device, {}})) {
  HEADRACE_CHECK(Impl::of_this_thread == nullptr, "what operators make is noted already");
  for (const at::Tensor& tensor : older) {
    if (tensor.has_storage()) impl_->older.insert(tensor.storage().unsafeGetStorageImpl());
  }
  impl_->handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(Impl::began, Impl::ended).needsOutputs(true).scopes({at::RecordScope::FUNCTION}));
  Impl::of_this_thread = impl_.get();
}

LiveStorages::~LiveStorages() {
  Impl::of_this_thread = nullptr;
  at::removeCallback(impl_->handle);
}

std::int64_t LiveStorages::bytes() const {
  std::int64_t held = 0;
  for (const auto& [address, storage] : impl_->seen) held += storage.is_live() ? storage.bytes() : 0;
  return held;
}

}  // namespace headrace
