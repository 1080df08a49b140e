#include "core/memory/page_lock.h"

#include <mutex>

#include "core/base/fail.h"

namespace headrace {
namespace {

std::mutex mutex;  // Guards `installed`.
PageLock installed;

}  // namespace

void install_page_lock(const PageLock& page_lock) {
  HEADRACE_CHECK((page_lock.lock == nullptr) == (page_lock.unlock == nullptr), "half of a page lock");
  const std::lock_guard lock(mutex);
  installed = page_lock;
}

PageLock installed_page_lock() {
  const std::lock_guard lock(mutex);
  return installed;
}

}  // namespace headrace
