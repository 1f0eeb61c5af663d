# Turns each module of src/ into a library and a test program: every x.cc is compiled into tutti_<module>, every
# x_test.cc into <module>_test, and with TUTTI_FUZZ every x_fuzz.cc into <module>_x_fuzz. The build finds new files by
# itself. The one list that is kept by hand, tutti_alone, has the files that TUTTI_BUILD_ONCE must not compile together
# with others; checks.thread_safety fails where the list lacks a file.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
include(TuttiLibraries)
# The headers of rdma-core. Without the headers the network over verbs is left out, and a call for this network fails with
# a sentence. The library itself is looked up at run time.
find_path(TUTTI_VERBS_HEADERS infiniband/verbs.h)
find_path(TUTTI_MLX5_HEADERS infiniband/mlx5dv.h)
find_path(TUTTI_RDMACM_HEADERS rdma/rdma_cma.h)
# Patterns of the files that are compiled in place of missing headers' users, and of the files that are left out.
set(TUTTI_IN_PLACE_OF_HEADERS "^$")
set(TUTTI_LEFT_OUT "/net/verbs/verbs_net_absent\\.cc$")
if(NOT TUTTI_VERBS_HEADERS)
  message(STATUS "There is no infiniband/verbs.h (libibverbs-dev): the network over verbs is left out")
  set(TUTTI_LEFT_OUT "/net/verbs/(.*/)?[^/]*$")
  set(TUTTI_IN_PLACE_OF_HEADERS "/net/verbs/verbs_net_absent\\.cc$")
endif()
if(TUTTI_GIN_DIRECT AND NOT (TUTTI_VERBS_HEADERS AND TUTTI_MLX5_HEADERS))
  message(STATUS "There is no infiniband/mlx5dv.h (libibverbs-dev): GIN direct is left out")
  set(TUTTI_GIN_DIRECT OFF)
endif()
if(TUTTI_GIN_DIRECT)
  string(APPEND TUTTI_LEFT_OUT "|/gin_direct/absent\\.cc$")
else()
  string(APPEND TUTTI_LEFT_OUT "|/src/gin_direct/")
  string(APPEND TUTTI_IN_PLACE_OF_HEADERS "|/gin_direct/absent\\.cc$")
endif()
if(TUTTI_VERBS_HEADERS AND TUTTI_RDMACM_HEADERS)
  string(APPEND TUTTI_LEFT_OUT "|/net/verbs/manager_absent\\.cc$")
elseif(TUTTI_VERBS_HEADERS)
  message(STATUS "There is no rdma/rdma_cma.h (librdmacm-dev): iWARP is left out")
  string(APPEND TUTTI_LEFT_OUT "|/net/verbs/manager\\.cc$")
endif()

add_library(tutti_options INTERFACE)
if(TUTTI_FUZZ)
  # Fuzzers need clang; the code is held to g++'s warnings only.
  target_compile_options(tutti_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link -w>)
  # The two files choose their target by a pragma that clang lacks.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/reduce_avx2.cc PROPERTIES COMPILE_OPTIONS "-mavx2;-mf16c")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/base/reduce_avx512.cc PROPERTIES
    COMPILE_OPTIONS "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mf16c")
  add_custom_target(fuzzers)
endif()
# -ffp-contract=off: results must not depend on whether the compiler found a multiply-add to fuse.
target_compile_options(tutti_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wconversion -Wshadow -fno-omit-frame-pointer
    -ffp-contract=off>)
target_include_directories(tutti_options INTERFACE ${PROJECT_SOURCE_DIR}/include)
# For #include "..." only: with -I our sys/socket.h would stand in for the system's <sys/socket.h>.
target_compile_options(tutti_options INTERFACE "SHELL:-iquote ${PROJECT_SOURCE_DIR}/src")
target_link_libraries(tutti_options INTERFACE Threads::Threads)
if(TUTTI_SANITIZE)
  target_compile_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE})
  # Two checks give false alarms. The check of dynamic types opens a pipe to look at memory, and fails where a test has
  # used up the descriptors. The check of enums does not know C callers, which can pass any number; tests cover such calls.
  target_compile_options(tutti_options INTERFACE -fno-sanitize=vptr,enum)
endif()

# With TUTTI_BUILD_ONCE the headers that most files of src/ include are compiled once, in tutti_base, for all modules, and
# a module's files a few at a time. No file may depend on TUTTI_BUILD_ONCE: every file includes the headers it uses.
function(tutti_precompile_headers target)
  if(NOT TUTTI_BUILD_ONCE)
    return()
  endif()
  if(NOT target STREQUAL tutti_base)
    target_precompile_headers(${target} REUSE_FROM tutti_base)
    return()
  endif()
  set(headers <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <filesystem> <fstream> <functional> <map> <memory>
      <mutex> <optional> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map> <utility> <variant>
      <vector> <fmt/format.h>)
  list(TRANSFORM headers REPLACE "(.+)" "$<$<COMPILE_LANGUAGE:CXX>:\\1>")
  target_precompile_headers(tutti_base PRIVATE ${headers})
endfunction()
# The files reduce_*.cc choose their instruction set ahead of their first header.
file(GLOB tutti_own_targets ${PROJECT_SOURCE_DIR}/src/base/reduce_*.cc)
set_source_files_properties(${tutti_own_targets} PROPERTIES SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
# Files with a name in an unnamed namespace that another file of the module has too, or with headers of the system that
# do not mix with another file's.
set(tutti_alone api/device_communicators.cc api/device_interface.cc api/windows.cc backend/cuda/pinned_pool.cc
    backend/host/messages.cc bootstrap/unique_id.cc comm/gpu_gin.cc comm/gpu_one_sided.cc gin/mail.cc gin_direct/mlx5/queues.cc
    gin/proxy.cc launch/http_store_client.cc operations/tuner/tuner_plugin.cc plan/mesh.cc sys/round_trip.cc sys/silence.cc
    transport/net/plugin/rma_library.cc transport/net/plugin/rma_plugin.cc transport/net/socket/stream.cc transport/shm/arena.cc window/host_flat_space.cc)
list(TRANSFORM tutti_alone PREPEND ${PROJECT_SOURCE_DIR}/src/)
set_source_files_properties(${tutti_alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

if(TUTTI_BUILD_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

function(tutti_module name)
  cmake_parse_arguments(ARG "TEST_ONLY" "" "LINK" ${ARGN})
  if(ARG_TEST_ONLY AND NOT TUTTI_BUILD_TESTS)
    return()
  endif()
  set(dir ${PROJECT_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  set(absent ${sources})
  list(FILTER absent INCLUDE REGEX "${TUTTI_IN_PLACE_OF_HEADERS}")
  list(FILTER sources EXCLUDE REGEX "${TUTTI_LEFT_OUT}")
  list(APPEND sources ${absent})
  set(tests ${sources})
  set(fuzzers ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  # A module's folder testing/ holds the code that its tests and benches share and its users never link.
  set(shared_by_tests ${sources})
  list(FILTER shared_by_tests INCLUDE REGEX "/src/${name}/testing/")
  list(FILTER sources EXCLUDE REGEX "/src/${name}/testing/")
  if(sources)
    add_library(tutti_${name} STATIC ${sources})
    target_link_libraries(tutti_${name} PUBLIC tutti_options ${ARG_LINK})
    tutti_precompile_headers(tutti_${name})
    set_target_properties(tutti_${name} PROPERTIES UNITY_BUILD ${TUTTI_BUILD_ONCE} UNITY_BUILD_BATCH_SIZE 12)
  else()
    add_library(tutti_${name} INTERFACE)
    target_link_libraries(tutti_${name} INTERFACE tutti_options ${ARG_LINK})
  endif()
  if(shared_by_tests)
    add_library(tutti_${name}_testing STATIC EXCLUDE_FROM_ALL ${shared_by_tests})
    target_link_libraries(tutti_${name}_testing PUBLIC tutti_${name})
    target_compile_definitions(tutti_${name}_testing PRIVATE TUTTI_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    if(TUTTI_BUILD_TESTS)
      target_link_libraries(tutti_${name}_testing PUBLIC GTest::gtest)
    endif()
  endif()
  if(TUTTI_FUZZ)
    foreach(source IN LISTS fuzzers)
      get_filename_component(stem ${source} NAME_WE)
      add_executable(${name}_${stem} ${source})
      target_link_libraries(${name}_${stem} PRIVATE tutti_${name})
      target_link_options(${name}_${stem} PRIVATE -fsanitize=fuzzer)
      set_target_properties(${name}_${stem} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzzers)
      add_dependencies(fuzzers ${name}_${stem})
    endforeach()
  endif()
  if(tests AND TUTTI_BUILD_TESTS)
    add_executable(${name}_test ${tests})
    set(helpers "")
    if(TARGET tutti_testing)
      set(helpers tutti_testing)
    endif()
    if(shared_by_tests)
      list(APPEND helpers tutti_${name}_testing)
    endif()
    target_compile_definitions(${name}_test PRIVATE TUTTI_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name}_test PRIVATE tutti_${name} ${helpers} GTest::gmock GTest::gtest_main)
    # A program that is loaded for the first time may need more than the 5 s in which it would have to name its tests.
    # Tests whose name begins with Slow take more than a second and get the label `slow`.
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." TEST_FILTER "-Slow*:*/Slow*" PROPERTIES LABELS unit TIMEOUT 120
                         DISCOVERY_TIMEOUT 120 DISCOVERY_MODE PRE_TEST)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." TEST_FILTER "Slow*:*/Slow*" PROPERTIES LABELS slow TIMEOUT 300
                         DISCOVERY_TIMEOUT 120 DISCOVERY_MODE PRE_TEST TEST_LIST ${name}_test_slow_tests)
  endif()
endfunction()

# Appends the targets of `folder` and of those below it to the list `result`.
function(tutti_append_targets result folder)
  set(found ${${result}})
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  list(APPEND found ${targets})
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS folders)
    tutti_append_targets(found ${below})
  endforeach()
  set(${result} ${found} PARENT_SCOPE)
endfunction()
