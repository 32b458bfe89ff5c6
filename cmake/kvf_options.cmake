# What every target of ours compiles with. Third parties are IMPORTED (SYSTEM) and see none of it.
option(KVF_WERROR "Warnings are errors" OFF)
set(KVF_SANITIZE "" CACHE STRING "Comma-separated sanitizers, e.g. address,undefined or thread")

add_library(kvfabric_options INTERFACE)
target_compile_features(kvfabric_options INTERFACE cxx_std_20)
target_include_directories(kvfabric_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_options(kvfabric_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wold-style-cast
  -Wcast-align -Wimplicit-fallthrough -Wformat=2 -Wundef
  -fno-omit-frame-pointer
  $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety -Wthread-safety-beta -Wunreachable-code>)
if(KVF_WERROR)
  target_compile_options(kvfabric_options INTERFACE -Werror)
endif()
if(KVF_SANITIZE)
  target_compile_options(kvfabric_options INTERFACE
    -fsanitize=${KVF_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(kvfabric_options INTERFACE -fsanitize=${KVF_SANITIZE})
endif()

# Product code also refuses silent narrowing; tests are allowed to be brief.
add_library(kvfabric_strict INTERFACE)
target_compile_options(kvfabric_strict INTERFACE -Wconversion -Wsign-conversion)
target_link_libraries(kvfabric_strict INTERFACE kvfabric_options)

if(KVF_FUZZ)
  # Coverage in every object under test, or the fuzzers see nothing and stop at once.
  target_compile_options(kvfabric_strict INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(kvfabric_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
