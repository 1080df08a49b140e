find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(ZLIB REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(lz4 REQUIRED IMPORTED_TARGET liblz4)
find_package(JPEG REQUIRED)
find_package(PNG REQUIRED)
pkg_check_modules(highway REQUIRED IMPORTED_TARGET libhwy)
# Left out are sets that have no processor of their own to be fast on. One list for every kernel file.
target_compile_definitions(PkgConfig::highway INTERFACE "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_AVX3_DL)")
find_package(CLI11 2.1 REQUIRED)

find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
add_library(tomlplusplus::tomlplusplus INTERFACE IMPORTED)
target_include_directories(tomlplusplus::tomlplusplus INTERFACE "${TOMLPLUSPLUS_INCLUDE}")

if(HEADRACE_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

# Linked by every module: formatting, JSON documents, threads, checksums. In a wheel fmt is compiled in: one library less to bring.
set(fmt_target fmt::fmt)
if(SKBUILD)
  set(fmt_target fmt::fmt-header-only)
endif()
set(HEADRACE_LINK_ALL ${fmt_target} nlohmann_json::nlohmann_json Threads::Threads PkgConfig::xxhash)
