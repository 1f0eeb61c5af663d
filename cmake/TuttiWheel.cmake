# Links the library and the program once more, of the same objects, for a wheel that any Linux of the last years can
# install (manylinux_2_28): with the C++ run time inside, and with no function that glibc 2.28 lacks. The target `wheel`
# makes the wheel, in wheel/ of the build.
#
# Included by src/CMakeLists.txt; tools/CMakeLists.txt adds the program.

set(TUTTI_WHEEL OFF)
if(TUTTI_STATIC_LIBRARIES AND TUTTI_sodium_ARCHIVE AND TUTTI_pugixml_ARCHIVE AND TUTTI_BUILD_COORDINATOR
   AND NOT TUTTI_SANITIZE AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
  set(TUTTI_WHEEL ON)
endif()
set(TUTTI_WHEEL ${TUTTI_WHEEL} PARENT_SCOPE)  # for the program, the installation and the tests
if(NOT TUTTI_WHEEL)
  message(STATUS "Tutti: no wheel is made of this build (sanitizers, no archives of sodium and pugixml, no coordinator)")
  return()
endif()

set(TUTTI_WHEEL_FOLDER ${PROJECT_BINARY_DIR}/wheel)

# Old systems have dlopen and threads in libraries of their own. New systems keep these libraries as empty files for the
# loader, without a file to link with, hence the files themselves are named.
set(separate_libraries "")
foreach(library libdl.so.2 libpthread.so.0)
  execute_process(COMMAND ${CMAKE_C_COMPILER} -print-file-name=${library} OUTPUT_VARIABLE path
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(APPEND separate_libraries ",${path}")
endforeach()
# Programs that link tutti_old_systems run on old systems.
add_library(tutti_old_systems INTERFACE)
target_sources(tutti_old_systems INTERFACE ${PROJECT_SOURCE_DIR}/src/old_glibc.c)
target_link_options(tutti_old_systems INTERFACE
  -static-libstdc++ LINKER:--no-as-needed${separate_libraries},--as-needed)

tutti_whole_library(tutti_portable empty.c)
target_link_libraries(tutti_portable PRIVATE tutti_old_systems)
set_target_properties(tutti_portable PROPERTIES EXPORT_NAME tutti VERSION ${PROJECT_VERSION_MAJOR}
  LIBRARY_OUTPUT_DIRECTORY ${TUTTI_WHEEL_FOLDER}/lib)
tutti_nccl_library(tutti_portable_nccl tutti_portable "$ORIGIN")
set_target_properties(tutti_portable_nccl PROPERTIES EXPORT_NAME nccl LIBRARY_OUTPUT_DIRECTORY ${TUTTI_WHEEL_FOLDER}/lib)
foreach(name tutti_portable tutti_portable_nccl)
  target_include_directories(${name} INTERFACE $<INSTALL_INTERFACE:include>)
endforeach()
