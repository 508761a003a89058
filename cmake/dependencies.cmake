# Highway and fmt, as PkgConfig::HWY and fmt::fmt-header-only: the system's. pip's build also works where
# there are none: CMake then downloads their releases (1 MB and 6 MB) and builds what it needs of them.
if(NOT TILEWISE_PYTHON)
  find_package(fmt REQUIRED)
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
  return()
endif()

include(FetchContent)
find_package(fmt QUIET)
if(NOT TARGET fmt::fmt-header-only)
  message(STATUS "fmt is not installed (Debian: libfmt-dev); downloading it")
  FetchContent_Declare(fmt
    URL https://github.com/fmtlib/fmt/archive/refs/tags/10.2.1.tar.gz
    URL_HASH SHA256=1250e4cc58bf06ee631567523f48848dc4596133e163f02615c97f78bab6c811
    DOWNLOAD_EXTRACT_TIMESTAMP FALSE)
  FetchContent_MakeAvailable(fmt)
endif()

find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
  pkg_check_modules(HWY QUIET IMPORTED_TARGET libhwy>=1.0.3)
endif()
if(NOT TARGET PkgConfig::HWY)
  message(STATUS "Highway is not installed (Debian: libhwy-dev); downloading it")
  foreach(part CONTRIB EXAMPLES INSTALL TESTS)
    set(HWY_ENABLE_${part} OFF CACHE INTERNAL "")
  endforeach()
  FetchContent_Declare(highway
    URL https://github.com/google/highway/archive/refs/tags/1.2.0.tar.gz
    URL_HASH SHA256=7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343
    DOWNLOAD_EXTRACT_TIMESTAMP FALSE)
  FetchContent_MakeAvailable(highway)
  add_library(PkgConfig::HWY ALIAS hwy)
endif()
