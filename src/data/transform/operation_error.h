// Exceptions of an operation, which may be a user's, with its name.
#pragma once

#include <headrace/operation.h>

#include <string_view>

namespace headrace::transform {

// In a handler: throws what is being handled as an Error whose text begins with "transform: NAME"; one that begins so
// stays as it is. `where` comes behind the name: " over batch 3". std::bad_alloc passes: it is none of the
// operation's.
[[noreturn]] void rethrow_of(const Operation& operation, std::string_view where = {});

// work(), which calls the operation.
template <class Work>
auto named(const Operation& operation, const Work& work) {
  try {
    return work();
  } catch (...) {
    rethrow_of(operation);
  }
}

}  // namespace headrace::transform
