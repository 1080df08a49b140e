# The Python package: the module headrace._native of the objects in src/python, beside links to python/headrace/*.py, in
# <build>/python/headrace. It is made for the interpreter HEADRACE_PYTHON, that of the environment which LibTorch comes from unless
# another is named (tools/carried.sh); pybind11's headers lie in the torch wheel. An installed package holds our libraries beside
# the module and finds them by $ORIGIN; torch's are in the process already, because headrace/__init__.py imports torch first.
execute_process(
  COMMAND "${HEADRACE_PYTHON}" -I -c
    "import sysconfig; print(sysconfig.get_paths()['include'], sysconfig.get_config_var('EXT_SUFFIX'), sep=';')"
  OUTPUT_VARIABLE python_facts OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
list(GET python_facts 0 python_include)
list(GET python_facts 1 python_suffix)
if(NOT EXISTS "${python_include}/Python.h")
  message(FATAL_ERROR "no Python.h in ${python_include}: wanted the Debian package python3-dev; run 'make setup'")
endif()

add_library(python_binding INTERFACE)
target_include_directories(python_binding SYSTEM INTERFACE "${python_include}")
# pybind11's classes are hidden, ours that hold them need not be: nobody outside the module sees them.
target_compile_options(python_binding INTERFACE -Wno-attributes)

# headrace_python_package(): after the module python and the libraries.
function(headrace_python_package)
  add_library(_native MODULE $<TARGET_OBJECTS:headrace_python>)
  target_link_libraries(_native PRIVATE headrace_torch "${torch_root}/lib/libtorch_python.so")
  set(package "${CMAKE_BINARY_DIR}/python/headrace")
  set_target_properties(_native PROPERTIES PREFIX "" SUFFIX "${python_suffix}" LIBRARY_OUTPUT_DIRECTORY "${package}"
    BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN")

  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/python/headrace/*.py" "${CMAKE_SOURCE_DIR}/python/headrace/*.pyi"
    "${CMAKE_SOURCE_DIR}/python/headrace/py.typed")
  set(types "${CMAKE_SOURCE_DIR}/include/headrace/dtypes.inc")  # Which worker.py reads.
  file(MAKE_DIRECTORY "${package}")
  foreach(source ${sources} "${types}")
    get_filename_component(name "${source}" NAME)
    file(CREATE_LINK "${source}" "${package}/${name}" SYMBOLIC)
  endforeach()
  if(SKBUILD)
    install(FILES "${types}" DESTINATION headrace COMPONENT python)
    install(TARGETS _native headrace headrace_torch LIBRARY DESTINATION headrace COMPONENT python NAMELINK_SKIP)
  endif()
endfunction()
