# The checks of the build, as tests with the label `checks`. checks.self_test feeds each check a sample to refuse.
# Included after every module and library is known.

set(checks ${PROJECT_SOURCE_DIR}/tools/checks)

# The sources that targets compile one by one, without headers that were compiled ahead.
set(compiled_sources "")
tutti_append_targets(targets ${PROJECT_SOURCE_DIR})
foreach(target IN LISTS targets)
  get_target_property(sources ${target} SOURCES)
  get_target_property(type ${target} TYPE)
  foreach(property EXCLUDE_FROM_ALL PRECOMPILE_HEADERS PRECOMPILE_HEADERS_REUSE_FROM UNITY_BUILD)
    get_target_property(${property} ${target} ${property})
  endforeach()
  if(sources AND NOT type STREQUAL "UTILITY" AND NOT EXCLUDE_FROM_ALL AND NOT PRECOMPILE_HEADERS AND
     NOT PRECOMPILE_HEADERS_REUSE_FROM AND NOT UNITY_BUILD)
    get_target_property(base ${target} SOURCE_DIR)
    list(TRANSFORM sources REPLACE "^([^/$].*)$" "${base}/\\1")
    list(APPEND compiled_sources ${sources})
  endif()
endforeach()

# Every header compiles alone. Where x.cc includes x.h first, compiling x.cc is the proof; a generated file includes each
# remaining header. The remaining headers are found when the build is configured, as in continuous integration.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
     ${PROJECT_SOURCE_DIR}/src/*.h ${PROJECT_SOURCE_DIR}/include/*.h ${PROJECT_SOURCE_DIR}/tools/*.h
     ${PROJECT_SOURCE_DIR}/tests/*.h ${PROJECT_SOURCE_DIR}/bench/*.h ${PROJECT_SOURCE_DIR}/examples/*.h)
list(FILTER headers EXCLUDE REGEX "/samples/")  # bad on purpose
list(FILTER headers EXCLUDE REGEX "^src/backend/cuda/device/")  # for nvcc
if(NOT TUTTI_VERBS_HEADERS)
  list(FILTER headers EXCLUDE REGEX "/verbs/")
endif()
if(NOT TUTTI_GIN_DIRECT)
  list(FILTER headers EXCLUDE REGEX "/gin_direct/|/fake_mlx5_state")
endif()
set(header_sources "")
foreach(header IN LISTS headers)
  string(REGEX REPLACE "\\.h$" ".cc" own_source ${PROJECT_SOURCE_DIR}/${header})
  if(own_source IN_LIST compiled_sources)
    file(STRINGS ${own_source} first_directive REGEX "^ *#" LIMIT_COUNT 1)
    string(REGEX MATCH "^#include \"([a-z0-9_./]+)\"$" found "${first_directive}")
    if(found AND "/${header}" MATCHES "/${CMAKE_MATCH_1}$")
      continue()
    endif()
  endif()
  set(language cc)
  if(header MATCHES "^examples/[^/]*$")  # those of the C programs
    set(language c)
  endif()
  set(source ${PROJECT_BINARY_DIR}/header_checks/${header}.${language})
  file(CONFIGURE OUTPUT ${source} CONTENT "#include \"${PROJECT_SOURCE_DIR}/${header}\"\n" @ONLY)
  list(APPEND header_sources ${source})
endforeach()
add_library(header_checks OBJECT EXCLUDE_FROM_ALL ${header_sources})
set_target_properties(header_checks PROPERTIES COMPILE_FLAGS "-O0 -g0 ${TUTTI_RARE_GARBAGE}")
target_link_libraries(header_checks PRIVATE tutti_comm tutti_api tutti_tools GTest::gmock GTest::gtest)
target_compile_options(header_checks PRIVATE "SHELL:-iquote ${PROJECT_SOURCE_DIR}/tests")

function(tutti_check name)
  add_test(NAME checks.${name} COMMAND ${ARGN})
  set_tests_properties(checks.${name} PROPERTIES LABELS checks TIMEOUT 600)
endfunction()

tutti_check(headers_alone ${CMAKE_COMMAND} --build ${PROJECT_BINARY_DIR} --target header_checks)
# In a new build the check compiles two hundred files, and with TUTTI_BUILD_ONCE all headers.
set_tests_properties(checks.headers_alone PROPERTIES TIMEOUT 1800 COST 200)
tutti_check(header_guards ${checks}/header_guards)
tutti_check(module_order ${checks}/module_order)
tutti_check(paths_named ${checks}/paths_named)
tutti_check(settings_used ${checks}/settings_used)
tutti_check(thread_safety ${checks}/thread_safety ${PROJECT_BINARY_DIR}/demo)
# Clang reads 80 units, for two minutes of a core.
set_tests_properties(checks.thread_safety PROPERTIES TIMEOUT 1800 COST 80)
tutti_check(format ${checks}/format)
tutti_check(prose ${checks}/prose)
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
