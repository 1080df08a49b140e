# LibTorch comes from the PyPI wheel in the Python environment. Only libtorch_cpu and libc10 are linked: the wheel's own
# CMake files demand a CUDA toolkit. Its headers come in by -idirafter, because the wheel carries protobuf and fmt of
# its own that would shadow Debian's (docs/decisions/0002-libtorch-from-the-wheel.md).
set(HEADRACE_TORCH_VERSION 2.11.0)
if(SKBUILD)
  # -I: pip hides the environment it installs into from a build by way of PYTHONPATH.
  execute_process(
    COMMAND "${HEADRACE_PYTHON}" -I -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(torch_advice "install it into this environment first")
else()
  file(GLOB torch_root "${HEADRACE_VENV}/lib/python3*/site-packages/torch")
  set(torch_advice "run 'make setup'")
endif()
if(NOT torch_root)
  message(FATAL_ERROR "no torch for ${HEADRACE_PYTHON}: wanted torch==${HEADRACE_TORCH_VERSION}; ${torch_advice}")
endif()
file(STRINGS "${torch_root}/version.py" torch_version_line REGEX "^__version__")
if(NOT torch_version_line MATCHES "'${HEADRACE_TORCH_VERSION}(\\+[a-z0-9]+)?'")
  message(FATAL_ERROR "wanted torch==${HEADRACE_TORCH_VERSION}, found ${torch_version_line} in ${torch_root}")
endif()

add_library(torch_cpu INTERFACE)
target_compile_options(torch_cpu INTERFACE
  "SHELL:-idirafter ${torch_root}/include" "SHELL:-idirafter ${torch_root}/include/torch/csrc/api/include")
set(torch_libraries "${torch_root}/lib")
if(HEADRACE_SANITIZE)
  # .venv is a link that stands in every clone; what it points to is shared. So the programs of two clones are the same bytes.
  file(REAL_PATH "${torch_root}/lib" torch_libraries)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/requirements.txt")
endif()
target_link_libraries(torch_cpu INTERFACE "${torch_libraries}/libtorch_cpu.so" "${torch_libraries}/libc10.so")
target_link_options(torch_cpu INTERFACE "LINKER:-rpath,${torch_libraries}" "LINKER:--allow-shlib-undefined")
