# TUTTI_QUICK_TESTS makes a build cheaper that is made once, to run all tests. Half of the time to compile goes into tests;
# a third of the tests' time goes into GoogleTest's headers, another third into optimizing.
option(TUTTI_QUICK_TESTS "Compile tests with -O1, and GoogleTest's headers once for all of them" OFF)
if(NOT TUTTI_QUICK_TESTS)
  return()
endif()
# g++ collects its garbage rarely, which takes a sixth off the time of a file with many headers, for 600 MB of memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(TUTTI_RARE_GARBAGE "--param ggc-min-expand=300 --param ggc-min-heapsize=1000000")
endif()

tutti_append_targets(targets ${PROJECT_SOURCE_DIR})
foreach(program IN LISTS targets)
  get_target_property(type ${program} TYPE)
  get_target_property(libraries ${program} LINK_LIBRARIES)
  if(NOT type STREQUAL EXECUTABLE OR NOT libraries MATCHES "GTest::")
    continue()
  endif()
  target_compile_options(${program} PRIVATE "$<$<COMPILE_LANGUAGE:C,CXX>:SHELL:${TUTTI_RARE_GARBAGE}>")
  # g++ 12 knows less with -O1, and is mistaken in warnings that follow the flow of values.
  target_compile_options(${program} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-O1;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-mismatched-new-delete>)
  # Every file of a test includes the headers it uses; the precompiled headers only save reading them again. g++ demands
  # the macros that were defined where the headers were compiled.
  target_compile_definitions(${program} PRIVATE TUTTI_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  if(program STREQUAL base_test)
    target_precompile_headers(base_test PRIVATE $<$<COMPILE_LANGUAGE:CXX>:<gmock/gmock.h$<ANGLE-R>>
                                                $<$<COMPILE_LANGUAGE:CXX>:<gtest/gtest.h$<ANGLE-R>>)
  else()
    target_precompile_headers(${program} REUSE_FROM base_test)
  endif()
endforeach()
