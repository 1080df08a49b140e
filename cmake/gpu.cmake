# libheadrace_gpu.so: the code that needs CUDA, as a library of its own that libheadrace_torch.so opens when a CUDA device is asked for
# (docs/decisions/0040-the-gpu-plugin.md). torch_cuda is what it compiles and links with: CUDA's half of LibTorch, and headers and
# runtime of CUDA out of the nvidia-* wheels that torch brings. There is no torch_cuda, and no plugin, where one of them is missing.
cmake_path(GET torch_root PARENT_PATH site_packages)
file(GLOB cuda_root "${site_packages}/nvidia/cu[0-9]*")
file(GLOB cuda_runtime "${cuda_root}/lib/libcudart.so.[0-9]*")
# Of what CUDA's headers include the runtime's wheel leaves out crt/, which that of nvidia-cuda-crt has, or else triton's.
set(cuda_crt "${cuda_root}/include/crt")
if(NOT EXISTS "${cuda_crt}/host_config.h")
  set(cuda_crt "${site_packages}/triton/backends/nvidia/include/crt")
endif()

set(plugin_lacks "")
foreach(file "${torch_root}/lib/libtorch_cuda.so" "${torch_root}/lib/libc10_cuda.so" "${cuda_runtime}"
    "${cuda_root}/include/cuda_runtime_api.h" "${cuda_crt}/host_config.h")
  if(NOT EXISTS "${file}" AND NOT plugin_lacks)
    set(plugin_lacks "there is no ${file}")
  endif()
endforeach()
if(NOT cuda_root OR NOT cuda_runtime)
  set(plugin_lacks "the torch in ${torch_root} brings no CUDA")
elseif(HEADRACE_SANITIZE)
  set(plugin_lacks "a sanitizer's programs use no GPU")
endif()

if(plugin_lacks)
  message(STATUS "libheadrace_gpu.so is not built: ${plugin_lacks}")
else()
  # The rest of triton's folder is another version of CUDA.
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/cuda_headers")
  file(CREATE_LINK "${cuda_crt}" "${CMAKE_BINARY_DIR}/cuda_headers/crt" SYMBOLIC)
  add_library(torch_cuda INTERFACE)
  target_compile_options(torch_cuda INTERFACE
    "SHELL:-idirafter \"${cuda_root}/include\"" "SHELL:-idirafter \"${CMAKE_BINARY_DIR}/cuda_headers\""
    "-ffile-prefix-map=${cuda_root}=cuda" "-ffile-prefix-map=${cuda_crt}=cuda/crt")
  target_link_libraries(torch_cuda INTERFACE "${torch_root}/lib/libtorch_cuda.so" "${torch_root}/lib/libc10_cuda.so" "${cuda_runtime}")
endif()

# headrace_gpu_plugin(): after the module gpu. It links none of our libraries: what it is called with are interfaces and plain values.
function(headrace_gpu_plugin)
  # Of it headrace_gpu_accelerator alone is to be seen.
  set_target_properties(headrace_gpu PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  add_library(headrace_gpu_plugin MODULE $<TARGET_OBJECTS:headrace_gpu>)
  target_link_libraries(headrace_gpu_plugin PRIVATE torch_cpu torch_cuda)
  # No number in its name, as it is opened by path; which build it is of it says itself.
  set_target_properties(headrace_gpu_plugin PROPERTIES OUTPUT_NAME headrace_gpu BUILD_RPATH_USE_ORIGIN ON INSTALL_RPATH "$ORIGIN")
endfunction()
