# What `make install` puts under a prefix: headers, both libraries, pkg-config files and a CMake package. The files
# that name paths name them relative to themselves, so that the whole tree can be moved.

include(CMakePackageConfigHelpers)

install(TARGETS tutti_shared tutti_nccl EXPORT tutti LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${PROJECT_SOURCE_DIR}/include/nccl.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} OPTIONAL)
install(FILES ${PROJECT_SOURCE_DIR}/include/nccl_device.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} OPTIONAL)
foreach(folder tutti nccl_device)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/include/${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
            FILES_MATCHING PATTERN "*.h")
  endif()
endforeach()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
install(EXPORT tutti NAMESPACE tutti:: FILE tuttiTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tuttiConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/tuttiConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
        DESTINATION ${package_dir})

# Written at install time would be too late for --prefix, hence a path relative to the .pc file itself.
file(RELATIVE_PATH up_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" up_to_prefix "${up_to_prefix}")
file(STRINGS ${PROJECT_SOURCE_DIR}/include/nccl.h nccl_lines REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*PATCH +([0-9]+).*" "\\1.\\2.\\3" NCCL_API_VERSION
       "${nccl_lines}")
foreach(name tutti nccl)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
