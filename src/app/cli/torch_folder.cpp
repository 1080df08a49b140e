#include "app/cli/torch_folder.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "core/base/files.h"

#ifndef HEADRACE_TORCH_VERSION
#define HEADRACE_TORCH_VERSION ""
#endif

namespace headrace {
namespace {

constexpr const char* kVariable = "HEADRACE_TORCH";

// The current folder, which Python would search first, is no place to look.
constexpr const char* kAskPython =
    "python3 -c \"import sys; sys.path.remove('') if '' in sys.path else None; import importlib.util as u; "
    "print(u.find_spec('torch').submodule_search_locations[0])\" 2>/dev/null";

// Empty: there is no python3 on the path, or it has no torch.
std::string torch_of_python() {
  const auto close = [](std::FILE* pipe) { ::pclose(pipe); };
  const std::unique_ptr<std::FILE, decltype(close)> pipe{::popen(kAskPython, "r"), close};
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 4096> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    text.append(buffer.data(), count);
  }
  return text.substr(0, text.find('\n'));
}

}  // namespace

bool torch_is_named() {
  const char* named = std::getenv(kVariable);
  return named != nullptr && *named != '\0';
}

std::string torch_fault_in(const std::filesystem::path& folder, std::string_view release) {
  const std::filesystem::path file = folder / "version.py";
  std::error_code ignored;  // What cannot be looked at cannot be read, and read_file says why.
  if (std::filesystem::status(file, ignored).type() == std::filesystem::file_type::not_found) {
    return fmt::format("wanted torch=={}, found no {}", release, file.string());
  }
  const std::string text = "\n" + read_file(file, 1 << 20);
  const std::size_t line = text.find("\n__version__");
  const std::size_t begin = text.find_first_of("'\"", line);
  const std::size_t end = begin == std::string::npos ? begin : text.find_first_of("'\"\n", begin + 1);
  if (line == std::string::npos || end == std::string::npos) {
    return fmt::format("wanted torch=={}, found no version in {}", release, file.string());
  }
  const std::string found = text.substr(begin + 1, end - begin - 1);
  if (found.substr(0, found.find('+')) == release) return "";
  return fmt::format("wanted torch=={}, found {} in {}", release, found, folder.string());
}

std::string open_torch() {
  const std::string folder = torch_is_named() ? std::getenv(kVariable) : torch_of_python();
  if (folder.empty()) {
    return fmt::format(
        "wanted torch=={0}, found none: {1} is not set, and the python3 on the path has no torch; set {1} to the "
        "folder "
        "of the torch package",
        HEADRACE_TORCH_VERSION, kVariable);
  }
  if (std::string fault = torch_fault_in(folder, HEADRACE_TORCH_VERSION); !fault.empty()) return fault;
  for (const char* name : {"libc10.so", "libtorch_cpu.so"}) {
    const std::filesystem::path path = std::filesystem::path(folder) / "lib" / name;
    if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) return ::dlerror();
  }
  return "";
}

}  // namespace headrace
