# cmake --install: libraries, executable, public headers and what find_package(headrace) reads. The prefix may be moved afterwards:
# nothing that is installed names a folder of this machine. LibTorch is the user's: a program finds it by its own run path, which
# CMake writes from the target headrace::torch, the executable as src/app/cli/torch_folder.h says.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/headrace")
file(RELATIVE_PATH from_bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
# In the build tree bin/ and lib/ lie beside each other, too. One run path for both: CMake pads one that it will rewrite by an
# empty entry, which the loader takes for the current folder.
set_target_properties(headrace_main PROPERTIES INSTALL_RPATH "$ORIGIN/${from_bin_to_lib}" BUILD_WITH_INSTALL_RPATH ON)
set_target_properties(headrace PROPERTIES BUILD_WITH_INSTALL_RPATH ON)

set(libraries headrace)
if(HEADRACE_TORCH)
  list(APPEND libraries headrace_torch)
endif()
if(TARGET headrace_gpu_plugin)
  list(APPEND libraries headrace_gpu_plugin)
endif()
install(TARGETS ${libraries} headrace_main COMPONENT cpp
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
# Those of the modules that are built: without LibTorch, none that includes it.
get_property(headers GLOBAL PROPERTY headrace_public_headers)
foreach(header ${headers})
  get_filename_component(folder "headrace/${header}" DIRECTORY)
  install(FILES "${CMAKE_SOURCE_DIR}/include/headrace/${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}" COMPONENT cpp)
endforeach()

install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" "${CMAKE_SOURCE_DIR}/NOTICE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT cpp)

set(HEADRACE_HAS_TORCH ${HEADRACE_TORCH})
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/headraceConfig.cmake.in" "${CMAKE_BINARY_DIR}/headraceConfig.cmake"
  INSTALL_DESTINATION "${package_folder}" PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR)
write_basic_package_version_file("${CMAKE_BINARY_DIR}/headraceConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/headraceConfig.cmake" "${CMAKE_BINARY_DIR}/headraceConfigVersion.cmake"
  "${CMAKE_CURRENT_LIST_DIR}/use_torch.cmake" DESTINATION "${package_folder}" COMPONENT cpp)
