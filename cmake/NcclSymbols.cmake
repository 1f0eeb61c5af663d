# Writes OUTPUT, a C file. The file defines every function of NCCL that LIBRARY exports with a twin (pncclSend of ncclSend),
# as a jump to the twin. NM is the program that lists the functions.
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY}
                OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "(^|\n)pnccl[A-Za-z0-9_]+ [TWi] " lines "${listing}")
set(text "/* NCCL's functions for the linker, each a jump to its twin in libtutti.so. */
#if defined(__x86_64__)
#define JUMP(name) \"jmp p\" #name \"@PLT\"
#else
#define JUMP(name) \"b p\" #name
#endif
#define DEFINE(name) __asm__(\".text\\n.globl \" #name \"\\n.type \" #name \", %function\\n\" #name \":\\n\" JUMP(name) \"\\n\");
")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^\n?p([A-Za-z0-9_]+) .*" "\\1" name "${line}")
  string(APPEND text "DEFINE(${name})\n")
endforeach()
string(APPEND text "typedef int tutti_not_empty;\n")
file(WRITE ${OUTPUT} "${text}")
