# What src/core/base/build_info.cpp reports. The commit is that of the last configuration: asking git at every build would
# link everything again after each commit. A sanitizer tree names none, so that its programs are the same bytes after a commit
# that changed nothing in them (tools/passed.py).
find_package(Git QUIET)
set(headrace_commit "unavailable")
if(GIT_FOUND AND NOT HEADRACE_SANITIZE AND EXISTS "${CMAKE_SOURCE_DIR}/.git")
  execute_process(COMMAND "${GIT_EXECUTABLE}" describe --always --dirty --exclude * --abbrev=7
    WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}" OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(headrace_commit "${described}")
  endif()
endif()
set(HEADRACE_PRESET "no preset" CACHE STRING "Name of the CMake preset, set by CMakePresets.json")
set_source_files_properties("${CMAKE_SOURCE_DIR}/src/core/base/build_info.cpp" PROPERTIES COMPILE_DEFINITIONS
  "HEADRACE_VERSION=\"${PROJECT_VERSION}\";HEADRACE_COMMIT=\"${headrace_commit}\";HEADRACE_PRESET=\"${HEADRACE_PRESET}\"")
