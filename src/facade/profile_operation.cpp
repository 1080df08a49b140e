#include <headrace/facade/profile_operation.h>

#include <memory>
#include <mutex>
#include <unordered_map>

namespace headrace::facade {
namespace {

struct Name {
  std::string text;
  SpanName span;
};

}  // namespace

const SpanName& operation_name(const std::string& text) {
  // Never freed: a trace may still be read while the process ends.
  static auto& mutex = *new std::mutex;
  static auto& names = *new std::unordered_map<std::string, std::unique_ptr<Name>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Name>& name = names[text];
  if (name == nullptr) {
    name = std::make_unique<Name>(Name{text, {}});
    name->span = {name->text.c_str(), "work"};
  }
  return name->span;
}

}  // namespace headrace::facade
