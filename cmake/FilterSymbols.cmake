# Writes OUTPUT, a C file that defines every function that LIBRARY exports; NM is the program that lists them. The
# definitions are never run (the loader replaces them), so each traps.
execute_process(COMMAND ${NM} -D --defined-only --format=posix ${LIBRARY}
                OUTPUT_VARIABLE listing COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "(^|\n)p?(nccl|tutti)[A-Za-z0-9_]+ [TWi] " lines "${listing}")
set(text "/* Names for the linker; the loader gives out the definitions of libtutti.so in their place. */\n")
foreach(line IN LISTS lines)
  string(REGEX REPLACE "^\n?([A-Za-z0-9_]+) .*" "\\1" name "${line}")
  string(APPEND text "void ${name}(void);\nvoid ${name}(void) { __builtin_trap(); }\n")
endforeach()
if(NOT lines)
  string(APPEND text "typedef int tutti_empty;\n")
endif()
file(WRITE ${OUTPUT} "${text}")
