# Installs the shared library, its headers and the CMake package `metalane`, into a prefix or into a wheel.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(SKBUILD)
  # A wheel's files lie in the Python package, the library next to the extension module. Wheels hold no symbolic
  # links, so the file's name is its soname.
  set(library_dir .)
  set(include_dir include)
  set(package_dir lib/cmake/metalane)
  set_target_properties(metalane PROPERTIES VERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
else()
  set(library_dir ${CMAKE_INSTALL_LIBDIR})
  set(include_dir ${CMAKE_INSTALL_INCLUDEDIR})
  set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/metalane)
endif()

if(SKBUILD)
  install(TARGETS metalane EXPORT metalane-targets LIBRARY DESTINATION ${library_dir} NAMELINK_SKIP)
else()
  install(TARGETS metalane EXPORT metalane-targets LIBRARY DESTINATION ${library_dir})
endif()
if(metallib_dir)
  # Beside the library, which looks for them there.
  install(DIRECTORY ${metallib_dir}/ DESTINATION ${library_dir}/metallib)
endif()
install(DIRECTORY csrc/include/metalane DESTINATION ${include_dir} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY ${generated}/include/metalane DESTINATION ${include_dir} FILES_MATCHING PATTERN "*.h")
install(EXPORT metalane-targets NAMESPACE metalane:: DESTINATION ${package_dir})
configure_package_config_file(cmake/metalane-config.cmake.in ${generated}/metalane-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${generated}/metalane-config-version.cmake
                                 VERSION ${PROJECT_VERSION} COMPATIBILITY SameMinorVersion)
install(FILES ${generated}/metalane-config.cmake ${generated}/metalane-config-version.cmake
        DESTINATION ${package_dir})
