// The instruction set that a file is compiled for, by its name in dispatch/instruction_sets.txt: the build defines
// INSTRUCTION_SET. What is compiled once for one processor is plain.
//
// The kernels are compiled once for each. What they share in headers is in a namespace of that name, because a linker
// keeps one of several functions with the same name, and must not give one with AVX-512 to those without.
#pragma once

#ifndef INSTRUCTION_SET
#define INSTRUCTION_SET plain
#endif

#define HYBRIDGE_TEXT_OF(name) #name
#define HYBRIDGE_TEXT(name) HYBRIDGE_TEXT_OF(name)
#define INSTRUCTION_SET_NAME HYBRIDGE_TEXT(INSTRUCTION_SET)
