#include "data/store/fault_store.h"

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fail.h"

namespace headrace {
namespace {

class FaultStore final : public Store {
 public:
  FaultStore(std::unique_ptr<const Store> inner, ChooseFault choose)
      : inner_(std::move(inner)), choose_(std::move(choose)) {}

  std::span<const std::uint8_t> get(const char* key, const ByteRange& range,
                                    std::vector<std::uint8_t>& buffer) const override {
    const StoreFault fault = choose_(key, range);
    if (fault.code) fail(*fault.code, "store: cannot read {}: a fault on request", text_of(key));
    const auto whole = inner_->get(key, range, buffer);
    HEADRACE_CHECK(fault.lost >= 0 && fault.lost <= std::ssize(whole), "{} of {} bytes", fault.lost, whole.size());
    const auto left = whole.first(whole.size() - static_cast<std::size_t>(fault.lost));
    if (fault.flipped) {
      const std::int64_t at = *fault.flipped;
      HEADRACE_CHECK(at >= 0 && at < std::ssize(left), "byte {} of {}", at, left.size());
      buffer[static_cast<std::size_t>(at)] ^= 1;
    }
    return left;
  }
  std::int64_t size(const char* key) const override { return inner_->size(key); }
  void expect(std::span<const char* const> keys) const override { inner_->expect(keys); }
  std::string text_of(const char* key) const override { return inner_->text_of(key); }

 private:
  const std::unique_ptr<const Store> inner_;
  const ChooseFault choose_;
};

}  // namespace

std::unique_ptr<const Store> with_faults(std::unique_ptr<const Store> inner, ChooseFault choose) {
  return std::make_unique<FaultStore>(std::move(inner), std::move(choose));
}

}  // namespace headrace
