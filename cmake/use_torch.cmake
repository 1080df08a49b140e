# How a torch package is used, in the build and by the installed CMake package.

# headrace_check_torch(RESULT FOLDER VERSION): why the torch package in FOLDER is not of VERSION, whatever stands behind a "+"; empty: it is.
function(headrace_check_torch result folder version)
  set(fault "wanted torch==${version}, found no ${folder}/version.py")
  if(EXISTS "${folder}/version.py" AND NOT IS_DIRECTORY "${folder}/version.py")
    file(STRINGS "${folder}/version.py" line REGEX "^__version__")
    string(REGEX REPLACE "^__version__ *= *['\"]([^'\"]*)['\"].*" "\\1" found "${line}")
    string(REGEX REPLACE "\\+.*" "" release "${found}")
    set(fault "")
    if(NOT release STREQUAL version)
      set(fault "wanted torch==${version}, found ${found} in ${folder}")
    endif()
  endif()
  set(${result} "${fault}" PARENT_SCOPE)
endfunction()

# headrace_use_torch(TARGET FOLDER): LibTorch of that package as what users of TARGET compile and link with.
#
# Only libtorch_cpu and libc10 are linked: the wheel's own CMake files demand a CUDA toolkit. Its headers come in by -idirafter,
# because the wheel carries protobuf and fmt of its own that would shadow the system's. C++ sources alone include them, and nvcc
# knows no -idirafter.
function(headrace_use_torch target folder)
  target_compile_options(${target} INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${folder}/include\">"
    "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${folder}/include/torch/csrc/api/include\">")
  target_link_libraries(${target} INTERFACE "${folder}/lib/libtorch_cpu.so" "${folder}/lib/libc10.so")
  # The program itself must ask for LibTorch, also where it calls none of it: libheadrace_torch.so does not say where it lies.
  target_link_options(${target} INTERFACE "LINKER:--no-as-needed" "LINKER:--allow-shlib-undefined")
endfunction()
