# kvf_library(NAME SRCS ... HDRS ... DEPS ... [PRIVATE_DEPS ...])
# One static library per directory, exported as kvfabric::NAME. Every source, public header and
# dependency is written out; there is no GLOB anywhere.
function(kvf_library NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;HDRS;DEPS;PRIVATE_DEPS" ${ARGN})
  set(target kvfabric_${NAME})
  if(ARG_SRCS)
    add_library(${target} STATIC ${ARG_SRCS})
    target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS} kvfabric_strict)
    target_include_directories(${target} PUBLIC "${PROJECT_SOURCE_DIR}")
    set_property(TARGET ${target} PROPERTY VERIFY_INTERFACE_HEADER_SETS ON)
    target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HDRS})
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ARG_DEPS})
    target_include_directories(${target} INTERFACE "${PROJECT_SOURCE_DIR}")
    target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARG_HDRS})
  endif()
  add_library(kvfabric::${NAME} ALIAS ${target})
endfunction()

# kvf_executable(NAME SRCS ... DEPS ...)
function(kvf_executable NAME)
  cmake_parse_arguments(ARG "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SRCS})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} kvfabric_strict)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endfunction()

# kvf_test(NAME SRCS ... DEPS ... [LABELS ...] [TIMEOUT SECONDS])
# One GoogleTest executable per module; each TEST becomes a ctest entry.
function(kvf_test NAME)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${NAME} ${ARG_SRCS})
  # What is tested is optimised; the test itself need not wait for the optimiser, least of all that
  # of a sanitizer lane.
  if(KVF_SANITIZE)
    target_compile_options(${NAME} PRIVATE -O0)
  else()
    target_compile_options(${NAME} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} GTest::gmock GTest::gtest_main kvfabric_options)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  gtest_discover_tests(${NAME} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60
    PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
endfunction()

# kvf_fuzz(NAME SRCS ... DEPS ... CORPUS DIR): a libFuzzer executable, built where KVF_FUZZ is on,
# and a short seeded run of it as a test.
function(kvf_fuzz NAME)
  cmake_parse_arguments(ARG "" "CORPUS" "SRCS;DEPS" ${ARGN})
  if(NOT KVF_FUZZ)
    return()
  endif()
  add_executable(${NAME} ${ARG_SRCS})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS} kvfabric_options)
  target_link_options(${NAME} PRIVATE -fsanitize=fuzzer)
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  # The first directory takes what the run finds, so that it does not land in the sources.
  set(found "${PROJECT_BINARY_DIR}/fuzz/${NAME}")
  file(MAKE_DIRECTORY "${found}")
  add_test(NAME ${NAME}.smoke COMMAND ${NAME} -runs=20000 -max_total_time=10 -seed=1
    -artifact_prefix=${PROJECT_BINARY_DIR}/ ${found} ${ARG_CORPUS})
  set_tests_properties(${NAME}.smoke PROPERTIES LABELS fuzz-smoke TIMEOUT 120
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
endfunction()
