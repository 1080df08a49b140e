#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <headrace/kernel.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string_view>
#include <vector>

#include "core/base/fail.h"
#include "data/store/mapped_file.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = "headrace kernel library, torch ";  // As HEADRACE_KERNEL_LIBRARY has it.
constexpr std::size_t kVersionBytesMax = 32;
constexpr std::size_t kNamesShown = 5;

bool is_identifier(std::string_view text) {
  const auto is_part = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::all_of(text.begin(), text.end(), is_part);
}

// "example::" of "example::normalise".
std::string_view namespace_of(std::string_view name) {
  const std::size_t colons = name.find("::");
  if (colons == std::string_view::npos || !is_identifier(name.substr(0, colons)) ||
      !is_identifier(name.substr(colons + 2))) {
    fail(ErrorCode::invalid_argument, "kernel: wanted a name as namespace::operator, found \"{}\"", name);
  }
  return name.substr(0, colons + 2);
}

// All operators of a namespace, without the names of their overloads.
std::set<std::string> operators(std::string_view space) {
  std::set<std::string> found;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (std::string_view(name.name).substr(0, space.size()) == space) found.insert(name.name);
  }
  return found;
}

std::string listed(const std::set<std::string>& names) {
  if (names.empty()) return "none of its namespace";
  const std::vector<std::string> all(names.begin(), names.end());
  const auto shown = static_cast<std::ptrdiff_t>(std::min(all.size(), kNamesShown));
  return fmt::format("{}{}", fmt::join(all.begin(), all.begin() + shown, ", "),
                     all.size() > kNamesShown ? ", ..." : "");
}

// "2.11" of "2.11.0+cpu".
std::string_view minor_version(std::string_view version) {
  return version.substr(0, version.find('.', version.find('.') + 1));
}

// Read from the file: with another interface of LibTorch its first steps might end the process.
void check_built_for(const std::string& name, const fs::path& library) {
  const MappedFile file(library, fmt::format("kernel: {}: {}", name, library.string()));
  const std::size_t at = file.bytes().find(kMark);
  if (at == std::string_view::npos) {
    fail(ErrorCode::unsupported, "kernel: {}: wanted HEADRACE_KERNEL_LIBRARY of headrace/kernel.h in {}, found none",
         name, library.string());
  }
  const std::string_view rest = file.bytes().substr(at + kMark.size(), kVersionBytesMax);
  const std::string_view version = minor_version(rest.substr(0, rest.find('\0')));
  if (version != minor_version(TORCH_VERSION)) {
    fail(ErrorCode::unsupported, "kernel: {}: {} was built for torch {}, found {}", name, library.string(), version,
         minor_version(TORCH_VERSION));
  }
}

}  // namespace

void register_kernel(const std::string& name, const fs::path& library) {
  const std::string_view space = namespace_of(name);
  const fs::path path = fs::absolute(library);  // A bare name would be looked for elsewhere.
  check_built_for(name, path);
  const bool is_open = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
  if (const auto taken = operators(space); !is_open && !taken.empty()) {
    fail(ErrorCode::invalid_argument, "kernel: {}: the namespace has operators of another library: {}", name,
         listed(taken));
  }
  if (::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    fail(ErrorCode::unsupported, "kernel: {}: cannot be opened: {}", name, ::dlerror());
  }
  if (const auto found = operators(space); found.count(name) == 0) {
    fail(ErrorCode::unsupported, "kernel: wanted {} in {}, found {}", name, path.string(), listed(found));
  }
}

}  // namespace headrace
