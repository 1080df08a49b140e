# headrace_module(GROUP/NAME [TORCH] [PUBLIC header...] [DEPENDS module...] [LINK target...] [TESTS program] [TESTS_READ path...])
#
# PUBLIC names the headers under include/headrace that belong to NAME.
# Sources are src/GROUP/NAME/*.cpp. DEPENDS names the modules whose headers these files include themselves, all of them
# earlier lines; tools/layer_check.py enforces both directions. What those modules need in turn is worked out here.
# *_test.cpp become a part of PROGRAM_test (one CTest, PROGRAM, for all its cases); PROGRAM is NAME where TESTS gives no other,
# and modules may share one. It links the modules of its program and what they depend on, nothing else, so a symbol of
# another module does not link either. x_bench.cpp becomes x_bench, and x_fuzz.cpp, in the preset fuzz alone, x_fuzz, and a CTest
# fuzz.x that runs it over tests/fuzz_inputs/x; they link the same. All of these are made by headrace_programs().
# The target test_programs builds what these CTests run. TESTS_READ names the files and folders of the tree that they read:
# `make test` lets a sanitizer's program see no other, and runs it again when one of them changed.
# Headers named *_options.h are plain values without LibTorch and may be included from anywhere
# (docs/decisions/0001-option-headers-are-free.md).
function(headrace_module path)
  cmake_parse_arguments(arg "TORCH" "TESTS" "PUBLIC;DEPENDS;LINK;TESTS_READ" ${ARGN})
  get_filename_component(name "${path}" NAME)
  set(dir "${CMAKE_SOURCE_DIR}/src/${path}")
  file(GLOB sources CONFIGURE_DEPENDS "${dir}/*.cpp")
  file(GLOB tests CONFIGURE_DEPENDS "${dir}/*_test.cpp")
  file(GLOB benches CONFIGURE_DEPENDS "${dir}/*_bench.cpp")
  file(GLOB fuzzers CONFIGURE_DEPENDS "${dir}/*_fuzz.cpp")
  list(REMOVE_ITEM sources ${tests} ${benches} ${fuzzers} "")
  if(NOT sources)
    message(FATAL_ERROR "module ${name}: no sources in ${dir}")
  endif()

  set(closure ${name})
  foreach(module ${arg_DEPENDS})
    get_property(its_closure GLOBAL PROPERTY headrace_closure_of_${module})
    if(NOT its_closure)
      message(FATAL_ERROR "module ${name}: DEPENDS names ${module}, which no line above it does")
    endif()
    list(APPEND closure ${its_closure})
  endforeach()
  list(REMOVE_DUPLICATES closure)
  set_property(GLOBAL PROPERTY headrace_closure_of_${name} "${closure}")
  set_property(GLOBAL PROPERTY headrace_link_of_${name} "${arg_LINK}")
  set_property(GLOBAL PROPERTY headrace_torch_of_${name} ${arg_TORCH})
  set_property(GLOBAL APPEND PROPERTY headrace_public_headers ${arg_PUBLIC})

  # Optimising code that runs once takes longer than it saves (docs/measured/tests.md): that of tests, and under a sanitizer that of
  # modules that move no samples.
  set(unoptimised ${tests})
  if(HEADRACE_SANITIZE AND path MATCHES "^(core/options|core/trace|insight/diagnose|app/.*|engine/.*|python|python/core)$")
    list(APPEND unoptimised ${sources})
  endif()
  set_source_files_properties(${unoptimised} PROPERTIES COMPILE_OPTIONS -O0)

  add_library(headrace_${name} OBJECT ${sources})
  target_include_directories(headrace_${name} PUBLIC "${CMAKE_SOURCE_DIR}/include" "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(headrace_${name} PUBLIC ${HEADRACE_LINK_ALL} ${arg_LINK})
  if(arg_TORCH)
    target_link_libraries(headrace_${name} PUBLIC torch_cpu)
  endif()

  set(program ${name})
  if(arg_TESTS)
    set(program ${arg_TESTS})
  endif()
  set_property(GLOBAL APPEND PROPERTY headrace_programs ${program})
  set_property(GLOBAL APPEND PROPERTY headrace_modules_of_${program} ${closure})
  set_property(GLOBAL APPEND PROPERTY headrace_sources_of_${program} ${sources})
  set_property(GLOBAL APPEND PROPERTY headrace_tests_of_${program} ${tests})
  set_property(GLOBAL APPEND PROPERTY headrace_reads_of_${program} ${arg_TESTS_READ})
  set_property(GLOBAL APPEND PROPERTY headrace_benches_of_${program} ${benches})
  set_property(GLOBAL APPEND PROPERTY headrace_fuzzers_of_${program} ${fuzzers})
  if(HEADRACE_TESTS)
    headrace_headers_alone(${path} ${arg_PUBLIC})
  endif()
endfunction()

# The objects of modules, and what they link, into variables of the caller: headrace_parts(OBJECTS LINKS module...).
function(headrace_parts objects_name links_name)
  set(objects "")
  set(links ${HEADRACE_LINK_ALL})
  foreach(module ${ARGN})
    list(APPEND objects $<TARGET_OBJECTS:headrace_${module}>)
    get_property(its_link GLOBAL PROPERTY headrace_link_of_${module})
    get_property(is_torch GLOBAL PROPERTY headrace_torch_of_${module})
    list(APPEND links ${its_link})
    if(is_torch)
      list(APPEND links torch_cpu)
    endif()
  endforeach()
  set(${objects_name} "${objects}" PARENT_SCOPE)
  set(${links_name} "${links}" PARENT_SCOPE)
endfunction()

# headrace_programs(): the tests, benches and fuzzers of all modules; after the last headrace_module().
function(headrace_programs)
  get_property(programs GLOBAL PROPERTY headrace_programs)
  list(REMOVE_DUPLICATES programs)
  foreach(program ${programs})
    get_property(modules GLOBAL PROPERTY headrace_modules_of_${program})
    list(REMOVE_DUPLICATES modules)
    headrace_parts(objects links ${modules})
    get_property(tests GLOBAL PROPERTY headrace_tests_of_${program})
    get_property(benches GLOBAL PROPERTY headrace_benches_of_${program})
    get_property(fuzzers GLOBAL PROPERTY headrace_fuzzers_of_${program})
    if(HEADRACE_FUZZERS)
      foreach(fuzzer ${fuzzers})
        get_filename_component(name "${fuzzer}" NAME_WE)
        headrace_program(${name} "${fuzzer}")
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
      endforeach()
    endif()
    set(is_tested ${HEADRACE_TESTS})
    if(HEADRACE_SANITIZE STREQUAL "thread")
      headrace_has_threads(is_tested ${program})
      set(fuzzers "")  # A parser runs in one thread.
    endif()
    if(is_tested)
      headrace_tests_of(${program})
    endif()
    if(HEADRACE_TESTS AND HEADRACE_BENCHES)
      foreach(bench ${benches})
        get_filename_component(name "${bench}" NAME_WE)
        headrace_program(${name} "${bench}")
        target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/bench")  # quantile.h.
        target_link_libraries(${name} PRIVATE benchmark::benchmark)
      endforeach()
    endif()
  endforeach()
endfunction()

# Whether a source of PROGRAM's own modules or one of its tests includes what starts threads, keeps them apart or catches signals.
# Where none does, the thread sanitizer has nothing to find.
function(headrace_has_threads result program)
  set(${result} FALSE PARENT_SCOPE)
  get_property(sources GLOBAL PROPERTY headrace_sources_of_${program})
  get_property(tests GLOBAL PROPERTY headrace_tests_of_${program})
  foreach(source ${sources} ${tests})
    file(STRINGS "${source}" found LIMIT_COUNT 1
      REGEX "^#include <(thread|mutex|shared_mutex|condition_variable|future|pthread.h|csignal)>")
    if(found)
      set(${result} TRUE PARENT_SCOPE)
    endif()
  endforeach()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${sources} ${tests})
endfunction()

# These two see the variables of headrace_programs(): an executable of `objects` that links `links`,
macro(headrace_program name)
  add_executable(${name} ${ARGN} ${objects})
  target_include_directories(${name} PRIVATE "${CMAKE_SOURCE_DIR}/include" "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PRIVATE ${links})
endmacro()

# the replay of each fuzzer's inputs, and the test program.
macro(headrace_tests_of program)
  foreach(fuzzer ${fuzzers})
    get_filename_component(name "${fuzzer}" NAME_WE)
    string(REGEX REPLACE "_fuzz$" "" parser "${name}")
    headrace_program(${name}_replay "${fuzzer}" "${CMAKE_SOURCE_DIR}/tests/fuzz_replay.cpp")
    add_test(NAME fuzz.${parser} COMMAND ${name}_replay tests/fuzz_inputs/${parser} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    set_tests_properties(fuzz.${parser} PROPERTIES TIMEOUT 120 LABELS fuzz_replay
      REQUIRED_FILES "${CMAKE_SOURCE_DIR}/tests/fuzz_inputs/${parser}")
    headrace_test_program(${name}_replay)
  endforeach()
  if(tests)
    headrace_program(${program}_test ${tests} "${CMAKE_SOURCE_DIR}/tests/own_cache.cpp")
    target_link_libraries(${program}_test PRIVATE GTest::gtest GTest::gmock GTest::gtest_main)
    add_test(NAME ${program} COMMAND ${program}_test WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    get_property(reads GLOBAL PROPERTY headrace_reads_of_${program})
    list(TRANSFORM reads PREPEND "${CMAKE_SOURCE_DIR}/")
    set_tests_properties(${program} PROPERTIES TIMEOUT 900 LABELS gtest REQUIRED_FILES "${reads}")
    headrace_test_program(${program}_test)
  endif()
endmacro()

# A sanitizer tree builds these alone: neither the libraries nor the executable are run there.
function(headrace_test_program target)
  if(NOT TARGET test_programs)
    add_custom_target(test_programs)
  endif()
  add_dependencies(test_programs ${target})
endfunction()

# Compiles each header of a module alone, so that none leans on what its includer happened to include before it. Built
# by the target headers_alone, which a CTest of cmake/tree_checks.cmake runs; not part of a plain build. A header that its own
# source includes first is compiled like that already (clang-format keeps it first), and left out: three in four.
function(headrace_headers_alone path)
  get_filename_component(name "${path}" NAME)
  file(GLOB candidates CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}/src/${path}/*.h")
  set(headers "")
  foreach(header ${candidates})
    string(REGEX REPLACE "\\.h$" ".cpp" own_source "${CMAKE_SOURCE_DIR}/src/${header}")
    set(first_include "")
    if(EXISTS "${own_source}")
      file(STRINGS "${own_source}" first_include REGEX "^#include" LIMIT_COUNT 1)
    endif()
    if(NOT first_include STREQUAL "#include \"${header}\"")
      list(APPEND headers ${header})
    endif()
  endforeach()
  foreach(header ${ARGN})
    if(header MATCHES "\\.h$")  # A list (.inc) is nothing without the macro that reads it.
      list(APPEND headers "headrace/${header}")
    endif()
  endforeach()
  set(sources "")
  foreach(header ${headers})
    set(source "${CMAKE_BINARY_DIR}/headers_alone/${header}.cpp")
    # The second line finds a missing include guard.
    file(CONFIGURE OUTPUT "${source}" CONTENT "#include <@header@>\n#include <@header@>\n" @ONLY)
    list(APPEND sources "${source}")
  endforeach()
  if(NOT sources)
    return()
  endif()
  add_library(headrace_${name}_headers OBJECT EXCLUDE_FROM_ALL ${sources})
  target_link_libraries(headrace_${name}_headers PRIVATE headrace_${name})
  target_compile_options(headrace_${name}_headers PRIVATE -O0 -g0)
  if(NOT TARGET headers_alone)
    add_custom_target(headers_alone)
  endif()
  add_dependencies(headers_alone headrace_${name}_headers)
endfunction()

# headrace_library(NAME module...): one shared library of these modules.
function(headrace_library name)
  headrace_parts(objects links ${ARGN})
  add_library(${name} SHARED ${objects})
  target_include_directories(${name} PUBLIC "${CMAKE_SOURCE_DIR}/include" "${CMAKE_SOURCE_DIR}/src")
  target_link_libraries(${name} PUBLIC ${links})
  # Any change of the version may change the interface: there is no promise before 1.0.
  set_target_properties(${name} PROPERTIES SOVERSION ${PROJECT_VERSION} BUILD_RPATH_USE_ORIGIN ON BUILD_RPATH "$ORIGIN"
    INSTALL_RPATH "$ORIGIN")
endfunction()
