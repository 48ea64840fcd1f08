# Installs the shared library, its headers and the CMake package `metalane`.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS metalane EXPORT metalane-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY csrc/include/metalane DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${generated}/include/metalane DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/metalane)
install(EXPORT metalane-targets NAMESPACE metalane:: DESTINATION ${package_dir})
configure_package_config_file(cmake/metalane-config.cmake.in ${generated}/metalane-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${generated}/metalane-config-version.cmake
                                 VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${generated}/metalane-config.cmake ${generated}/metalane-config-version.cmake
        DESTINATION ${package_dir})
