# The libraries that are linked in. libtutti.so and the program are to work where they are copied, so these come as
# archives: their code becomes part of ours, and the version script and -Bsymbolic keep its symbols inside. Where a
# distribution has no archive (or with TUTTI_STATIC_LIBRARIES=OFF), the shared library is linked, which whoever runs it
# must then have; tools/checks/needed_libraries says so.

option(TUTTI_STATIC_LIBRARIES "Link pugixml and sodium in as archives, so that nobody needs them" ON)

# Makes the target tutti::NAME from what pkg-config says of MODULE.
function(tutti_library name module)
  pkg_check_modules(${name} REQUIRED IMPORTED_TARGET ${module})
  add_library(tutti_${name} INTERFACE)
  add_library(tutti::${name} ALIAS tutti_${name})
  list(GET ${name}_LIBRARIES 0 library)
  find_library(TUTTI_${name}_ARCHIVE lib${library}.a HINTS ${${name}_LIBRARY_DIRS} ${${name}_LIBDIR})
  mark_as_advanced(TUTTI_${name}_ARCHIVE)
  if(TUTTI_STATIC_LIBRARIES AND TUTTI_${name}_ARCHIVE)
    target_include_directories(tutti_${name} SYSTEM INTERFACE ${${name}_INCLUDE_DIRS})
    target_link_libraries(tutti_${name} INTERFACE ${TUTTI_${name}_ARCHIVE})
  else()
    if(TUTTI_STATIC_LIBRARIES)
      message(STATUS "There is no lib${library}.a: libtutti.so will need the shared library")
    endif()
    target_link_libraries(tutti_${name} INTERFACE PkgConfig::${name})
  endif()
endfunction()

tutti_library(sodium libsodium)
tutti_library(pugixml pugixml)
