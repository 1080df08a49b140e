# The Python package: its extensions beside links to python/headrace/*.py, in <build>/python/headrace. They load the one
# libheadrace.so, so that what is global in it is there once (docs/decisions/0032-one-library-under-two-extensions.md).
# Beside it lie performance_optimization and performance_optimization_system, which are Python alone.
# <build>/python-without-engine is the same without _engine, for tests of what the package is where that cannot be had.
#
# _core, of the objects in src/python/core, needs no LibTorch. It is bound by nanobind in split mode, whose compiled half is the
# package nanobind-backend, and keeps to Python's stable ABI, so that one file serves every Python from HEADRACE_PYTHON_FLOOR on.
# _engine, of those in src/python, is there where HEADRACE_TORCH is ON. It is made for the interpreter HEADRACE_PYTHON, that of the
# environment which LibTorch comes from unless another is named (tools/carried.sh); pybind11's headers lie in the torch wheel. An
# installed package holds our libraries beside the extensions and finds them by $ORIGIN; torch's are in the process already, because
# headrace/_engine_door.py imports torch first. The program headrace lies in the package's bin, where headrace/__main__.py looks.
execute_process(
  COMMAND "${HEADRACE_PYTHON}" -I -c
    "import sysconfig; print(sysconfig.get_paths()['include'], sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
  OUTPUT_VARIABLE python_facts OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET python_facts 0 python_include)
list(GET python_facts 1 python_suffix)
if(NOT EXISTS "${python_include}/Python.h")
  message(FATAL_ERROR "no Python.h in ${python_include}: wanted the Debian package python3-dev; run 'make setup'")
endif()

# pip puts what pyproject.toml asks for into PYTHONPATH, and hides the environment that it installs into there. Elsewhere the headers
# are those of the project's own environment, as they are of no Python.
if(SKBUILD)
  set(nanobind_of "${HEADRACE_PYTHON}" -P)
else()
  set(nanobind_of "${HEADRACE_VENV}/bin/python" -I)
endif()
execute_process(COMMAND ${nanobind_of} -c "import nanobind; print(nanobind.include_dir())"
  OUTPUT_VARIABLE nanobind_include OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT EXISTS "${nanobind_include}/nanobind/nanobind.h")
  message(FATAL_ERROR "no nanobind: wanted that of requirements.txt; run 'make setup'")
endif()
set(HEADRACE_PYTHON_FLOOR 3.11)  # The first whose stable ABI has the buffer protocol.
set(floor_in_hex 0x030B0000)

# What nanobind's own CMake function sets for split mode, but for optimising and stripping in another way than the rest.
add_library(core_binding INTERFACE)
target_include_directories(core_binding SYSTEM INTERFACE "${nanobind_include}" "${python_include}")
target_compile_definitions(core_binding INTERFACE Py_LIMITED_API=${floor_in_hex} NB_BACKEND_MODULE=nanobind_backend
  NB_BACKEND_PYPI=nanobind_backend NB_DOMAIN=headrace)
target_compile_options(core_binding INTERFACE -Wno-attributes)  # Likewise of nanobind's classes.

add_library(python_binding INTERFACE)
target_include_directories(python_binding SYSTEM INTERFACE "${python_include}")
# pybind11's classes are hidden, ours that hold them need not be: nobody outside the module sees them.
target_compile_options(python_binding INTERFACE -Wno-attributes)

# headrace_python_package(): after the module python/core, with LibTorch the module python, the libraries and the program.
function(headrace_python_package)
  set(package "${CMAKE_BINARY_DIR}/python/headrace")
  set(without_engine "${CMAKE_BINARY_DIR}/python-without-engine/headrace")
  # Its own names are nobody's: of the module PyInit__core alone is to be seen.
  set_target_properties(headrace_core PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  add_library(_core MODULE $<TARGET_OBJECTS:headrace_core>)
  target_link_libraries(_core PRIVATE headrace)
  set_target_properties(_core PROPERTIES PREFIX "" SUFFIX ".abi3.so" LIBRARY_OUTPUT_DIRECTORY "${package}"
    BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN")

  set(targets headrace_core _core)
  set(installed _core headrace)
  if(TARGET headrace_python)
    add_library(_engine MODULE $<TARGET_OBJECTS:headrace_python>)
    target_link_libraries(_engine PRIVATE headrace_torch "${torch_root}/lib/libtorch_python.so")
    set_target_properties(_engine PROPERTIES PREFIX "" SUFFIX "${python_suffix}" LIBRARY_OUTPUT_DIRECTORY "${package}"
      BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN")
    add_dependencies(_engine _core)  # Who builds the one wants the package.
    list(APPEND targets headrace_python _engine)
    list(APPEND installed _engine headrace_torch)
    if(TARGET headrace_gpu_plugin)  # _engine opens it beside libheadrace_torch.so and links none of it.
      add_dependencies(_engine headrace_gpu_plugin)
      list(APPEND installed headrace_gpu_plugin)
    endif()
  endif()
  if(HEADRACE_SANITIZE)  # Their runtime must be in the process before the interpreter: make check PARTS=asan-python.
    set_target_properties(${targets} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()

  set(types "${CMAKE_SOURCE_DIR}/include/headrace/dtypes.inc")  # Which worker.py reads.
  foreach(folder "${package}" "${without_engine}")
    file(MAKE_DIRECTORY "${folder}/bin")
    file(CREATE_LINK "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/headrace" "${folder}/bin/headrace" SYMBOLIC)
    file(CREATE_LINK "${types}" "${folder}/dtypes.inc" SYMBOLIC)
    cmake_path(GET folder PARENT_PATH tree)
    foreach(name headrace performance_optimization performance_optimization_system)
      file(GLOB sources CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}/python" "${CMAKE_SOURCE_DIR}/python/${name}/*.py"
        "${CMAKE_SOURCE_DIR}/python/${name}/*.pyi" "${CMAKE_SOURCE_DIR}/python/${name}/py.typed")
      file(MAKE_DIRECTORY "${tree}/${name}")
      foreach(source ${sources})
        file(CREATE_LINK "${CMAKE_SOURCE_DIR}/python/${source}" "${tree}/${source}" SYMBOLIC)
      endforeach()
    endforeach()
  endforeach()
  file(CREATE_LINK "${package}/_core.abi3.so" "${without_engine}/_core.abi3.so" SYMBOLIC)  # As deep, so $ORIGIN leads to lib.
  if(SKBUILD)
    install(FILES "${types}" DESTINATION headrace COMPONENT python)
    install(TARGETS ${installed} LIBRARY DESTINATION headrace COMPONENT python NAMELINK_SKIP)
    set_target_properties(headrace_main PROPERTIES INSTALL_RPATH "$ORIGIN/..")
    install(TARGETS headrace_main RUNTIME DESTINATION headrace/bin COMPONENT python)
  endif()
endfunction()
