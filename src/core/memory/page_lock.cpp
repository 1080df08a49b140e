#include "core/memory/page_lock.h"

#include <mutex>

#include "core/base/fail.h"

namespace headrace {
namespace {

std::mutex mutex;  // Guards `installed`.
PageLock installed;

}  // namespace

void install_page_lock(const PageLock& page_lock) {
  const bool locks = page_lock.lock != nullptr;
  const bool is_whole = (page_lock.unlock != nullptr) == locks && (page_lock.mark != nullptr) == locks &&
                        (page_lock.has_passed != nullptr) == locks && (page_lock.wait != nullptr) == locks;
  HEADRACE_CHECK(is_whole, "half of a page lock");
  const std::lock_guard lock(mutex);
  installed = page_lock;
}

PageLock installed_page_lock() {
  const std::lock_guard lock(mutex);
  return installed;
}

}  // namespace headrace
