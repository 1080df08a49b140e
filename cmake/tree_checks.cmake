# CTests that read the tree itself instead of running its code. Each prints what is wrong, one line a finding. Not in a sanitizer
# tree, which would learn nothing that release does not tell.
find_package(Python3 3.11 REQUIRED COMPONENTS Interpreter)

function(headrace_tree_check name)
  add_test(NAME tree.${name} COMMAND ${Python3_EXECUTABLE} ${ARGN} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(tree.${name} PROPERTIES TIMEOUT 120 LABELS tree)
endfunction()

headrace_tree_check(modules_include_only_what_their_line_names tools/layer_check.py)
headrace_tree_check(public_headers_stand_alone tools/header_check.py)
headrace_tree_check(names_follow_the_style tools/names_check.py)
# Without LibTorch half of the tests that the ledger names are not there.
if(HEADRACE_TORCH)
  headrace_tree_check(requirements_ledger_is_whole tools/requirements_check.py "${CMAKE_BINARY_DIR}")
endif()

add_test(NAME tree.each_header_compiles_alone
  COMMAND ${CMAKE_COMMAND} --build "${CMAKE_BINARY_DIR}" --target headers_alone -- -k 0)
set_tests_properties(tree.each_header_compiles_alone PROPERTIES TIMEOUT 900 LABELS tree RUN_SERIAL ON)
