# libtilewise and what installs it: the library, its headers, a CMake package and a pkg-config file.
# Users compile against C++17 or C99 and see none of the build's own dependencies.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(tilewise $<TARGET_OBJECTS:tilewise_objects>)
add_library(tilewise::tilewise ALIAS tilewise)
set_target_properties(tilewise PROPERTIES
  LINKER_LANGUAGE CXX VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_compile_features(tilewise INTERFACE cxx_std_17)
target_include_directories(tilewise INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
if(BUILD_SHARED_LIBS)
  target_link_libraries(tilewise PRIVATE
    $<BUILD_INTERFACE:OpenMP::OpenMP_CXX> $<BUILD_INTERFACE:PkgConfig::HWY> ${CMAKE_DL_LIBS})
  if(NOT TILEWISE_SANITIZE)  # clang leaves the sanitizer's run-time to the executable
    target_link_options(tilewise PRIVATE -Wl,-z,defs)
  endif()
else()
  # A static library's user links what the library uses, by plain names that need no package.
  set(tilewise_private_libs -lhwy ${OpenMP_CXX_FLAGS} -lstdc++ -lm ${CMAKE_DL_LIBS})
  list(TRANSFORM tilewise_private_libs REPLACE "^dl$" "-ldl")
  target_link_libraries(tilewise PUBLIC ${tilewise_private_libs})
endif()
install(TARGETS tilewise EXPORT tilewise_targets)
install(DIRECTORY include/tilewise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT tilewise_targets NAMESPACE tilewise:: FILE tilewise-targets.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
configure_package_config_file(cmake/tilewise-config.cmake.in tilewise-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
write_basic_package_version_file(tilewise-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewise-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/tilewise-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
file(RELATIVE_PATH tilewise_pc_up ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
list(JOIN tilewise_private_libs " " tilewise_pc_libs)
configure_file(cmake/tilewise.pc.in tilewise.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tilewise.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
