#include "python/folder_lock.h"

#include <pybind11/pybind11.h>

#include <vector>

namespace headrace::python {
namespace {

namespace py = pybind11;

// Those of this process.
std::vector<std::optional<FileLock>*>& held_locks() {
  static std::vector<std::optional<FileLock>*> locks;
  return locks;
}

// A child that closes its descriptor leaves its parent's lock in place. Registered once a process: Python has no way to
// unregister.
void drop_in_forked_processes() {
  static bool is_asked = false;
  if (is_asked) return;
  const py::cpp_function drop([] {
    for (std::optional<FileLock>* lock : held_locks()) lock->reset();
  });
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") = drop);
  is_asked = true;
}

}  // namespace

FolderLock::FolderLock(const std::filesystem::path& folder) : lock_(std::in_place, folder / "lock") {
  remove_leftovers(folder);
  drop_in_forked_processes();
  held_locks().push_back(&lock_);
}

FolderLock::~FolderLock() {
  std::erase(held_locks(), &lock_);
}

}  // namespace headrace::python
