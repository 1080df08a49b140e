#include "app/cli/torch_library.h"

#include <dlfcn.h>

#include <utility>

#include "app/cli/torch_folder.h"
#include "core/base/build_info.h"
#include "core/base/fail.h"

namespace headrace {
namespace {

struct Opened {
  void* library = nullptr;
  std::string fault;  // Where library is null.
};

Opened open_at(const std::filesystem::path& path) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  return {library, library == nullptr ? ::dlerror() : ""};
}

// Of dlopen's words: "libc10.so: cannot open shared object file: ...".
bool lacks_torch(const std::string& fault) {
  return fault.rfind("libc10.so:", 0) == 0 || fault.rfind("libtorch_cpu.so:", 0) == 0;
}

// make and .venv are at hand in a build tree alone.
bool in_build_tree() {
  std::error_code ignored;  // What cannot be looked at is no build tree.
  return std::filesystem::exists(torch_library_path().parent_path().parent_path() / "CMakeCache.txt", ignored);
}

// What completes an installation that lacks something of ours.
const char* advice() {
  return in_build_tree() ? "run make" : "install headrace again";
}

Opened find_library() {
  const std::filesystem::path path = torch_library_path();
  std::error_code ignored;  // A library that cannot be looked at cannot be opened, and dlopen says why.
  if (std::filesystem::status(path, ignored).type() == std::filesystem::file_type::not_found) {
    return {nullptr, fmt::format("{} is missing: {}", path.string(),
                                 in_build_tree() ? "this build has no LibTorch; run make"
                                                 : "this installation has no LibTorch; install one that has")};
  }
  const bool is_named = torch_is_named();
  Opened opened = is_named ? Opened{} : open_at(path);
  if (is_named || lacks_torch(opened.fault)) {
    if (std::string fault = open_torch(); !fault.empty()) {
      return {nullptr, fault + (in_build_tree() && !is_named ? "; or run make, which completes .venv" : "")};
    }
    opened = open_at(path);
  } else if (std::string fault = loaded_torch_fault(); !fault.empty()) {
    return {nullptr, std::move(fault)};
  }
  if (opened.library == nullptr) opened.fault += fmt::format("; {}", advice());
  return opened;
}

// A file that cannot be read is one fault more of those that doctor tells.
Opened open_library() {
  try {
    return find_library();
  } catch (const Error& error) {
    return {nullptr, error.what()};
  }
}

}  // namespace

std::filesystem::path torch_library_path() {
  static const char anchor = 0;  // An object of this library, wherever the loader put it.
  Dl_info info{};
  HEADRACE_CHECK(::dladdr(&anchor, &info) != 0 && info.dli_fname != nullptr,
                 "cli: the loader does not know this library");
  std::error_code error;
  const std::filesystem::path own = std::filesystem::canonical(info.dli_fname, error);
  return (error ? std::filesystem::path(info.dli_fname) : own).parent_path() /
         fmt::format("libheadrace_torch.so.{}", build_info().version);
}

int run_torch_verb(const Invocation& invocation) {
  const Opened opened = open_library();
  if (opened.library == nullptr) {
    fail(ErrorCode::unsupported, "{}: not applicable: {}", invocation.verb, opened.fault);
  }
  void* symbol = ::dlsym(opened.library, "headrace_run_verb");
  if (symbol == nullptr) {
    fail(ErrorCode::unsupported, "cli: {} is of another version: it has no headrace_run_verb; {}",
         torch_library_path().string(), advice());
  }
  return reinterpret_cast<decltype(&headrace_run_verb)>(symbol)(&invocation);
}

std::optional<std::string> torch_library_fault() {
  const Opened opened = open_library();
  return opened.library == nullptr ? std::optional(opened.fault) : std::nullopt;
}

}  // namespace headrace
