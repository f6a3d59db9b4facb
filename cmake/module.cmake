# kvik_module(NAME DEPS modules... [LINK libraries...] [PRIVATE libraries...] [TEST_LINK libraries...])
#
# Folder src/NAME = static library kvik::NAME. Tests (*_test.cc) beside the sources become one
# program NAME_test, benchmarks (*_bench.cc, Google Benchmark or an own main) one program each.
# A module cannot link what DEPS does not list; tests/dag_test.py closes the header-only gap.
#
# Files named *_avx2.cc, *_avx512.cc, *_avx512bf16.cc, *_avx512vbmi.cc are compiled for that ISA and
# only for it (*_test_avx2.cc and so on: the same, as part of the test program). They must not define
# inline functions with external linkage (no std containers): the linker would be free to keep the
# AVX-512 copy for everybody.
include(GoogleTest)

set(KVIK_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(KVIK_FLAGS_avx512 ${KVIK_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq -mavx512vl
                      -mprefer-vector-width=512)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  # GCC 12's own AVX-512 intrinsics trip this warning (GCC bug 105593).
  list(APPEND KVIK_FLAGS_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(KVIK_FLAGS_avx512bf16 ${KVIK_FLAGS_avx512} -mavx512bf16)
set(KVIK_FLAGS_avx512vbmi ${KVIK_FLAGS_avx512} -mavx512vbmi -mavx512cd -mavx512vpopcntdq)

function(kvik_isa_flags)
  foreach(src ${ARGN})
    if(src MATCHES "_(avx2|avx512|avx512bf16|avx512vbmi)\\.cc$")
      set_source_files_properties(${src} PROPERTIES COMPILE_OPTIONS
                                  "${KVIK_FLAGS_${CMAKE_MATCH_1}}")
    endif()
    # No input that is fuzzed reaches a kernel but the codec's, and instrumented kernels take minutes
    # to compile.
    if(KVIK_FUZZ AND src MATCHES "_(scalar|avx2|avx512|avx512bf16|avx512vbmi)\\.cc$"
       AND NOT src MATCHES "/codec/")
      set_property(SOURCE ${src} APPEND PROPERTY COMPILE_OPTIONS -fno-sanitize=all)
    endif()
  endforeach()
endfunction()

function(kvik_module name)
  cmake_parse_arguments(M "" "" "DEPS;LINK;PRIVATE;TEST_LINK" ${ARGN})
  set(dir ${CMAKE_CURRENT_SOURCE_DIR}/${name})
  file(GLOB_RECURSE all CONFIGURE_DEPENDS ${dir}/*.cc)
  set(tests ${all})
  set(test_regex "_test(_scalar|_avx2|_avx512|_avx512bf16|_avx512vbmi)?\\.cc$")
  list(FILTER tests INCLUDE REGEX ${test_regex})
  set(benches ${all})
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX ${test_regex})
  list(FILTER sources EXCLUDE REGEX "_bench\\.cc$")
  kvik_isa_flags(${sources} ${tests})
  set(scope PUBLIC)
  if(sources)
    add_library(kvik_${name} STATIC ${sources})
    target_link_libraries(kvik_${name} PRIVATE ${M_PRIVATE})
  else()
    add_library(kvik_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  add_library(kvik::${name} ALIAS kvik_${name})
  target_include_directories(kvik_${name} ${scope} ${CMAKE_SOURCE_DIR}/src)
  list(TRANSFORM M_DEPS PREPEND kvik::)
  target_link_libraries(kvik_${name} ${scope} ${M_DEPS} ${M_LINK})
  if(tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE kvik::${name} ${M_PRIVATE} ${M_TEST_LINK}
                                               GTest::gmock GTest::gtest_main)
    gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60
                         PROPERTIES LABELS unit TIMEOUT 600
                                    ENVIRONMENT ${KVIK_TEST_ENVIRONMENT})
  endif()
  foreach(bench ${benches})
    get_filename_component(bench_name ${bench} NAME_WE)
    add_executable(${bench_name} ${bench})
    target_link_libraries(${bench_name} PRIVATE kvik::${name} ${M_PRIVATE})
  endforeach()
endfunction()
