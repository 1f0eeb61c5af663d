# The checks of the build, as tests with the label `checks`. Each has a self-test that feeds it what it must refuse.
# Included after every module and library is known.

set(checks ${PROJECT_SOURCE_DIR}/tools/checks)

# Every header compiles alone: one generated file includes one header twice (so that a missing #pragma once shows too).
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/src/*.h ${PROJECT_SOURCE_DIR}/include/*.h ${PROJECT_SOURCE_DIR}/tools/*.h
     ${PROJECT_SOURCE_DIR}/tests/*.h ${PROJECT_SOURCE_DIR}/bench/*.h ${PROJECT_SOURCE_DIR}/examples/*.h)
list(FILTER headers EXCLUDE REGEX "/samples/")  # bad on purpose
list(FILTER headers EXCLUDE REGEX "^src/backend/cuda/device/")  # for nvcc
if(NOT TUTTI_VERBS_HEADERS)
  list(FILTER headers EXCLUDE REGEX "/verbs/|/gin/mlx5/|/fake_mlx5_state")
elseif(NOT TUTTI_MLX5_HEADERS)
  list(FILTER headers EXCLUDE REGEX "/gin/mlx5/|/fake_mlx5_state")
endif()
set(header_sources "")
foreach(header IN LISTS headers)
  set(language cc)
  if(header MATCHES "^examples/[^/]*$")  # those of the C programs
    set(language c)
  endif()
  set(source ${PROJECT_BINARY_DIR}/header_checks/${header}.${language})
  set(text "#include \"${PROJECT_SOURCE_DIR}/${header}\"\n#include \"${PROJECT_SOURCE_DIR}/${header}\"\n")
  file(CONFIGURE OUTPUT ${source} CONTENT "${text}" @ONLY)
  list(APPEND header_sources ${source})
endforeach()
add_library(header_checks OBJECT EXCLUDE_FROM_ALL ${header_sources})
set_target_properties(header_checks PROPERTIES COMPILE_FLAGS "-O0 -g0")
target_link_libraries(header_checks PRIVATE tutti_comm tutti_api tutti_tools GTest::gmock GTest::gtest)
target_compile_options(header_checks PRIVATE "SHELL:-iquote ${PROJECT_SOURCE_DIR}/tests")

function(tutti_check name)
  add_test(NAME checks.${name} COMMAND ${ARGN})
  set_tests_properties(checks.${name} PROPERTIES LABELS checks TIMEOUT 600)
endfunction()

tutti_check(headers_alone ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target header_checks)
# In a new build it compiles hundreds of files, on two slow cores for ten minutes.
set_tests_properties(checks.headers_alone PROPERTIES TIMEOUT 1800)
tutti_check(module_order ${checks}/module_order)
tutti_check(paths_named ${checks}/paths_named)
tutti_check(settings_used ${checks}/settings_used)
tutti_check(thread_safety ${checks}/thread_safety ${PROJECT_BINARY_DIR})
# Clang reads dozens of files, 2 s each.
set_tests_properties(checks.thread_safety PROPERTIES TIMEOUT 1800)
tutti_check(format ${checks}/format)
tutti_check(scripts ${checks}/scripts)
if(NOT TUTTI_SANITIZE)
  tutti_check(exported_symbols ${checks}/exported_symbols
              $<TARGET_FILE:tutti_shared> $<TARGET_FILE:tutti_nccl>)
  tutti_check(client_symbols ${checks}/client_symbols $<TARGET_FILE:tutti_shared>)
  if(TUTTI_STATIC_LIBRARIES)
    tutti_check(needed_libraries ${checks}/needed_libraries
                $<TARGET_FILE:tutti_shared> $<TARGET_FILE:tutti_nccl> $<TARGET_FILE:tutti>)
  endif()
endif()
tutti_check(self_test ${checks}/self_test ${CMAKE_CXX_COMPILER} ${CMAKE_C_COMPILER})
