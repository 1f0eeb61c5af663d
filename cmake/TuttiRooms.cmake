# How a room of src/ becomes a library and a test program: every x.cc is compiled into tutti_<room>, every
# x_test.cc into <room>_test. New files are found by themselves; no list is kept by hand.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(pugixml REQUIRED IMPORTED_TARGET pugixml)
pkg_check_modules(hwloc REQUIRED IMPORTED_TARGET hwloc)

add_library(tutti_options INTERFACE)
# -ffp-contract=off: results must not depend on whether the compiler found a multiply-add to fuse.
target_compile_options(tutti_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Wconversion -Wshadow -Werror -fno-omit-frame-pointer
    -ffp-contract=off>)
target_include_directories(tutti_options INTERFACE ${PROJECT_SOURCE_DIR}/include)
# For #include "..." only: with -I our sys/socket.h would stand in for the system's <sys/socket.h>.
target_compile_options(tutti_options INTERFACE "SHELL:-iquote ${PROJECT_SOURCE_DIR}/src")
target_link_libraries(tutti_options INTERFACE Threads::Threads)
if(TUTTI_SANITIZE)
  target_compile_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(tutti_options INTERFACE -fsanitize=${TUTTI_SANITIZE})
endif()

if(TUTTI_BUILD_TESTS)
  enable_testing()
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

function(tutti_room name)
  cmake_parse_arguments(ARG "TEST_ONLY" "" "LINK" ${ARGN})
  if(ARG_TEST_ONLY AND NOT TUTTI_BUILD_TESTS)
    return()
  endif()
  set(dir ${PROJECT_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|fuzz)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(tutti_${name} STATIC ${sources})
    target_link_libraries(tutti_${name} PUBLIC tutti_options ${ARG_LINK})
  else()
    add_library(tutti_${name} INTERFACE)
    target_link_libraries(tutti_${name} INTERFACE tutti_options ${ARG_LINK})
  endif()
  if(tests AND TUTTI_BUILD_TESTS)
    add_executable(${name}_test ${tests})
    set(helpers "")
    if(TARGET tutti_testing)
      set(helpers tutti_testing)
    endif()
    target_compile_definitions(${name}_test PRIVATE TUTTI_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name}_test PRIVATE tutti_${name} ${helpers} GTest::gmock GTest::gtest_main)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." PROPERTIES LABELS unit TIMEOUT 120
                         DISCOVERY_MODE PRE_TEST)
  endif()
endfunction()
