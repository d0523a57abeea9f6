# The core's sources and what they alone are compiled with, for CMakeLists.txt and for the tests, which compile them again under
# sanitizers. A file that is added to a folder is compiled everywhere. The folders are in the order of their use.
set(native ${CMAKE_CURRENT_LIST_DIR})
file(GLOB HYBRIDGE_API CONFIGURE_DEPENDS ${native}/c_api/*.cpp)
file(GLOB_RECURSE HYBRIDGE_ENGINE CONFIGURE_DEPENDS ${native}/engine/*.cpp ${native}/text/*.cpp)
file(GLOB HYBRIDGE_PROGRAM CONFIGURE_DEPENDS ${native}/pte/*.cpp) # ExecuTorch's headers are for these alone

# It rounds to the same bits on each processor: no product is fused with a sum.
set_source_files_properties(${native}/c_api/rounding.cpp PROPERTIES COMPILE_OPTIONS "-O3;-ffp-contract=off")

# Libraries below the tokenizer, built as nobody else's: their warnings are not ours.
file(GLOB HYBRIDGE_THIRD_PARTY CONFIGURE_DEPENDS ${native}/third_party/pcre2/*.c)
list(APPEND HYBRIDGE_THIRD_PARTY ${native}/third_party/utf8proc/utf8proc.c ${native}/third_party/yyjson/yyjson.c)
set_source_files_properties(
  ${HYBRIDGE_THIRD_PARTY} PROPERTIES COMPILE_OPTIONS -w COMPILE_DEFINITIONS "HAVE_CONFIG_H;PCRE2_CODE_UNIT_WIDTH=8"
                                     INCLUDE_DIRECTORIES ${native}/third_party/pcre2
)

# hybridge-cli's own, and Wuffs, which decodes its pictures.
file(GLOB HYBRIDGE_CLI CONFIGURE_DEPENDS ${native}/cli/*.cpp)
set(HYBRIDGE_WUFFS ${native}/third_party/wuffs/wuffs-unsupported-snapshot.c)
include(${native}/third_party/wuffs/wuffs.cmake)
set_source_files_properties(${HYBRIDGE_WUFFS} PROPERTIES COMPILE_OPTIONS -w COMPILE_DEFINITIONS "${WUFFS_DEFINITIONS}")
