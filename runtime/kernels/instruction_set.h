// The instruction set that a file is compiled for (dispatch/instruction_sets.txt), by its name there.
//
// The kernels are compiled once for each. What they share in headers is in a namespace of that name, because a linker
// keeps one of several functions with the same name, and must not give one with AVX-512 to those without.
#pragma once

#if defined(__AVX512VNNI__)
#define INSTRUCTION_SET avx512vnni
#elif defined(__AVXVNNI__)
#define INSTRUCTION_SET avxvnni
#elif defined(__AVX2__)
#define INSTRUCTION_SET avx2
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#define INSTRUCTION_SET i8mm
#elif defined(__ARM_FEATURE_DOTPROD)
#define INSTRUCTION_SET dotprod
#else
#define INSTRUCTION_SET plain
#endif

#define HYBRIDGE_TEXT_OF(name) #name
#define HYBRIDGE_TEXT(name) HYBRIDGE_TEXT_OF(name)
#define INSTRUCTION_SET_NAME HYBRIDGE_TEXT(INSTRUCTION_SET)
