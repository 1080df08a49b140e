# LibTorch comes from the PyPI wheel in the Python environment (docs/decisions/0002-libtorch-from-the-wheel.md). Its folder is the
# run path of what is built, which CMake writes by itself; of what is installed it is not (cmake/install.cmake).
if(NOT DEFINED HEADRACE_TORCH_VERSION)  # `make package TORCH=2.15` gives another: tools/package.py.
  set(HEADRACE_TORCH_VERSION 2.11.0)
endif()
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
if(HEADRACE_SANITIZE)
  # .venv is a link that stands in every clone; what it points to is shared. So the programs of two clones are the same bytes.
  file(REAL_PATH "${torch_root}" torch_root)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/requirements.txt")
else()
  cmake_path(IS_PREFIX CMAKE_SOURCE_DIR "${torch_root}" NORMALIZE is_inside)
  if(NOT is_inside)  # As CMakeLists.txt does for the folder of the build.
    add_compile_options(-ffile-prefix-map=${torch_root}=torch)
  endif()
endif()

include("${CMAKE_CURRENT_LIST_DIR}/use_torch.cmake")
headrace_check_torch(torch_fault "${torch_root}" ${HEADRACE_TORCH_VERSION})
if(torch_fault)
  message(FATAL_ERROR "${torch_fault}")
endif()
add_library(torch_cpu INTERFACE)
headrace_use_torch(torch_cpu "${torch_root}")
