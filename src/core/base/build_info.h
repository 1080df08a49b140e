// What `headrace --version` prints. The commit is the checkout's at configure time, or "unavailable".
#pragma once

namespace headrace {
struct BuildInfo {
  const char* version;   // "0.1.0"
  const char* commit;    // "a1b2c3d" or "a1b2c3d-dirty"
  const char* compiler;  // "g++ 12.2.0" or "clang++ 14.0.6"
  const char* preset;    // "release", or "no preset"
};
const BuildInfo& build_info() noexcept;
}  // namespace headrace
