# The libraries that are linked in. libtutti.so and the program must work wherever they are copied, hence the libraries are
# linked as archives: their code becomes part of Tutti's, and the version script and -Bsymbolic keep their symbols inside.
# Where a distribution has no archive (or with TUTTI_STATIC_LIBRARIES=OFF), the shared library is linked, and users of
# Tutti need the shared library too; tools/checks/needed_libraries reports the need.

option(TUTTI_STATIC_LIBRARIES "Link pugixml and sodium in as archives, so that nobody needs them" ON)

# Makes the target tutti::NAME of the library that pkg-config knows as MODULE.
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
