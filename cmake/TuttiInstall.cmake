# Says what `make install` puts under a prefix: headers, the libraries, pkg-config files and a CMake package. The component
# `wheel` has the same files for a wheel; an ordinary installation leaves the component out. Paths in installed files are
# relative to the files, and the whole tree can be moved.

include(CMakePackageConfigHelpers)

# Installs what is alike in both below the folders for libraries and headers; further arguments go to install().
function(tutti_install_common libraries headers)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${headers} ${ARGN} FILES_MATCHING PATTERN "*.h")
  install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
          DESTINATION ${libraries}/cmake/tutti ${ARGN})
  # The file that -lnccl finds; the run-time library libnccl.so.2 is another file.
  install(PROGRAMS $<TARGET_FILE:tutti_nccl_link> DESTINATION ${libraries} ${ARGN})
  # Two more ways to hand out libnccl.so.2: a folder laid out as NVIDIA's package, and an audit library for the loader.
  set(overlay ${libraries}/tutti/overlay/nvidia)
  install(PROGRAMS $<TARGET_FILE:tutti_nccl_overlay> DESTINATION ${overlay}/nccl/lib RENAME libnccl.so.2 ${ARGN})
  install(FILES ${PROJECT_SOURCE_DIR}/python/overlay/nvidia/__init__.py DESTINATION ${overlay} ${ARGN})
  install(FILES ${PROJECT_SOURCE_DIR}/python/overlay/nvidia/nccl/__init__.py DESTINATION ${overlay}/nccl ${ARGN})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${overlay}/nccl/include ${ARGN}
          FILES_MATCHING PATTERN "nccl*.h")
  install(PROGRAMS $<TARGET_FILE:tutti_audit> DESTINATION ${libraries}/tutti ${ARGN})
endfunction()

install(TARGETS tutti_shared EXPORT tutti LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS tutti_nccl EXPORT tutti LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} NAMELINK_SKIP)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tutti NAMESPACE tutti:: FILE tuttiTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/tuttiConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
tutti_install_common(${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_INCLUDEDIR})

file(STRINGS ${PROJECT_SOURCE_DIR}/include/nccl.h nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" NCCL_API_VERSION
       "${nccl_lines}")
# Writes the pkg-config files for a library and header folder into the folder `where`, and installs them.
function(tutti_install_pkgconfig where libraries headers)
  # Written at install time would be too late for --prefix, hence a path relative to the .pc file itself.
  file(RELATIVE_PATH up_to_prefix /${libraries}/pkgconfig /)
  string(REGEX REPLACE "/$" "" up_to_prefix "${up_to_prefix}")
  foreach(name tutti nccl)
    configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${where}/${name}.pc @ONLY)
    install(FILES ${where}/${name}.pc DESTINATION ${libraries}/pkgconfig ${ARGN})
  endforeach()
endfunction()
tutti_install_pkgconfig(${PROJECT_BINARY_DIR} ${CMAKE_INSTALL_LIBDIR} ${CMAKE_INSTALL_INCLUDEDIR})

if(TUTTI_WHEEL)
  set(in_wheel COMPONENT wheel EXCLUDE_FROM_ALL)
  install(TARGETS tutti_portable EXPORT tutti_portable LIBRARY DESTINATION lib ${in_wheel})
  install(TARGETS tutti_portable_nccl EXPORT tutti_portable LIBRARY DESTINATION lib ${in_wheel} NAMELINK_SKIP)
  install(TARGETS tutti_portable_program tutti_portable_ncclras RUNTIME DESTINATION bin ${in_wheel})
  install(EXPORT tutti_portable NAMESPACE tutti:: FILE tuttiTargets.cmake DESTINATION lib/cmake/tutti ${in_wheel})
  tutti_install_common(lib include ${in_wheel})
  tutti_install_pkgconfig(${PROJECT_BINARY_DIR}/wheel lib include ${in_wheel})
endif()
