#include "app/cli/torch_folder.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <optional>

#include "core/base/descriptor.h"
#include "core/base/fail.h"
#include "core/base/files.h"
#include "core/exec/child_process.h"

#ifndef HEADRACE_TORCH_VERSION
#define HEADRACE_TORCH_VERSION ""
#endif

namespace headrace {
namespace {

// The interpreter alone takes 30 ms, and seconds from a cold network file system.
constexpr std::chrono::seconds kPythonTime{10};

// The current folder, which Python would search first, is no place to look.
constexpr const char* kAskPython =
    "exec python3 -c \"import sys; sys.path.remove('') if '' in sys.path else None; import importlib.util as u; "
    "print(u.find_spec('torch').submodule_search_locations[0])\" >&3 3>&- 2>/dev/null";

// nullopt: it did not answer in time. Empty: there is no python3 on the path, or it has no torch.
std::optional<std::string> torch_of_python() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    fail(ErrorCode::io, "cli: cannot make a pipe for python3: {}", system_message(errno));
  }
  const Descriptor reading_end{ends[0]}, writing_end{ends[1]};
  ChildProcess python{
      {.arguments = {"/bin/sh", "-c", kAskPython}, .descriptors = {writing_end.number()}, .environment = {}}};
  if (!python.wait(kPythonTime)) return std::nullopt;
  std::array<char, 4096> answer;  // A path, and its line's end.
  const ssize_t size = ::read(reading_end.number(), answer.data(), answer.size());
  const std::string text(answer.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text.substr(0, text.find('\n'));
}

// As "2.11" of "2.11.0+cpu"; a text of another form as it is.
std::string_view minor_of(std::string_view version) {
  const std::size_t dot = version.find('.');
  return dot == std::string_view::npos ? version : version.substr(0, version.find_first_not_of("0123456789", dot + 1));
}

}  // namespace

std::string_view torch_built_for() noexcept {
  return HEADRACE_TORCH_VERSION;
}

bool torch_is_named() {
  const char* named = std::getenv(kTorchVariable);
  return named != nullptr && *named != '\0';
}

std::string torch_fault_in(const std::filesystem::path& folder, std::string_view version) {
  const std::filesystem::path file = folder / "version.py";
  std::error_code ignored;  // What cannot be looked at cannot be read, and read_file says why.
  if (std::filesystem::status(file, ignored).type() == std::filesystem::file_type::not_found) {
    return fmt::format("built for torch {}, found no {}", minor_of(version), file.string());
  }
  const std::string text = "\n" + read_file(file, 1 << 20);
  const std::size_t line = text.find("\n__version__");
  const std::size_t begin = text.find_first_of("'\"", line);
  const std::size_t end = begin == std::string::npos ? begin : text.find_first_of("'\"\n", begin + 1);
  if (line == std::string::npos || end == std::string::npos) {
    return fmt::format("built for torch {}, found no version in {}", minor_of(version), file.string());
  }
  const std::string found = text.substr(begin + 1, end - begin - 1);
  if (minor_of(found) == minor_of(version)) return "";
  return fmt::format("built for torch {}, found {} in {}", minor_of(version), found, folder.string());
}

std::string loaded_torch_fault() {
  void* library = ::dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_LOCAL);
  link_map* map = nullptr;
  if (library == nullptr || ::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return "";
  // Not the file that a link leads to: version.py lies in the package that has the link.
  const std::filesystem::path folder = std::filesystem::absolute(map->l_name).parent_path().parent_path();
  std::error_code ignored;  // Then the file is there, and torch_fault_in says why it cannot be read.
  // An archive of LibTorch without Python has none, and tells its version nowhere.
  if (std::filesystem::status(folder / "version.py", ignored).type() == std::filesystem::file_type::not_found)
    return "";
  std::string fault = torch_fault_in(folder, torch_built_for());
  if (fault.empty()) return "";
  return fmt::format(
      "{}, which the loader finds by LD_LIBRARY_PATH or a run path; set {} to the folder of the torch package", fault,
      kTorchVariable);
}

std::string open_torch() {
  if (std::getenv(kTorchVariable) != nullptr && !torch_is_named()) {
    return fmt::format(
        "built for torch {}, found none: the Python that runs this command has no torch; install it there, or set {} "
        "to the folder of the torch package",
        minor_of(torch_built_for()), kTorchVariable);
  }
  const std::optional<std::string> found = torch_is_named() ? std::getenv(kTorchVariable) : torch_of_python();
  if (!found) {
    return fmt::format(
        "the python3 on the path did not say within {} seconds where its torch is; set {} to the folder of the torch "
        "package",
        kPythonTime.count(), kTorchVariable);
  }
  const std::filesystem::path folder = *found;
  if (folder.empty()) {
    return fmt::format(
        "built for torch {0}, found none: {1} is not set, and the python3 on the path has no torch; set {1} to the "
        "folder of the torch package",
        minor_of(torch_built_for()), kTorchVariable);
  }
  if (torch_is_named() && folder.is_relative()) {
    return fmt::format("wanted an absolute path in {}, found {}", kTorchVariable, folder.string());
  }
  if (std::string fault = torch_fault_in(folder, torch_built_for()); !fault.empty()) return fault;
  for (const char* name : {"libc10.so", "libtorch_cpu.so"}) {
    const std::filesystem::path path = folder / "lib" / name;
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return ::dlerror();
  }
  return "";
}

}  // namespace headrace
