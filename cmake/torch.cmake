# LibTorch comes from the PyPI wheel in the Python environment. Only libtorch_cpu and libc10 are linked: the wheel's own
# CMake files demand a CUDA toolkit. Its headers come in by -idirafter, because the wheel carries protobuf and fmt of
# its own that would shadow Debian's (docs/decisions/0002-libtorch-from-the-wheel.md).
set(HEADRACE_TORCH_VERSION 2.11.0)
file(GLOB torch_root "${HEADRACE_VENV}/lib/python3*/site-packages/torch")
if(NOT torch_root)
  message(FATAL_ERROR "no torch in ${HEADRACE_VENV}: wanted torch==${HEADRACE_TORCH_VERSION}; run 'make setup'")
endif()
file(STRINGS "${torch_root}/version.py" torch_version_line REGEX "^__version__")
if(NOT torch_version_line MATCHES "'${HEADRACE_TORCH_VERSION}(\\+[a-z0-9]+)?'")
  message(FATAL_ERROR "wanted torch==${HEADRACE_TORCH_VERSION}, found ${torch_version_line} in ${torch_root}")
endif()

add_library(torch_cpu INTERFACE)
target_compile_options(torch_cpu INTERFACE
  "SHELL:-idirafter ${torch_root}/include" "SHELL:-idirafter ${torch_root}/include/torch/csrc/api/include")
target_link_libraries(torch_cpu INTERFACE "${torch_root}/lib/libtorch_cpu.so" "${torch_root}/lib/libc10.so")
target_link_options(torch_cpu INTERFACE "LINKER:-rpath,${torch_root}/lib" "LINKER:--allow-shlib-undefined")
