/* Starts a program of the wheel on old and new systems (see old_glibc.c).
 *
 * Since glibc 2.34 the C library runs a program's constructors by itself; before, the program
 * handed it a function that did. The old way of calling __libc_start_main works with both, and
 * such a function must come along. */

#include <stddef.h>

#if defined(__x86_64__)
#define OLDEST_START "__libc_start_main@GLIBC_2.2.5"
#else
#define OLDEST_START "__libc_start_main@GLIBC_2.17"
#endif

#define HIDDEN __attribute__((visibility("hidden")))

typedef void (*Constructor)(int argc, char** argv, char** environment);
typedef int (*Main)(int argc, char** argv, char** environment);

/* The linker makes these, at the ends of the tables. */
extern HIDDEN const Constructor __preinit_array_start[], __preinit_array_end[];
extern HIDDEN const Constructor __init_array_start[], __init_array_end[];
extern HIDDEN void _init(void);

int tutti_oldest_start(Main main, int argc, char** argv, Constructor init, void (*fini)(void),
                       void (*loader_fini)(void), void* stack_end);
__asm__(".symver tutti_oldest_start," OLDEST_START);

static void Run(const Constructor* begin, const Constructor* end, int argc, char** argv,
                char** environment) {
  for (const Constructor* one = begin; one < end; ++one) (*one)(argc, argv, environment);
}

static void RunConstructors(int argc, char** argv, char** environment) {
  Run(__preinit_array_start, __preinit_array_end, argc, argv, environment);
  _init();
  Run(__init_array_start, __init_array_end, argc, argv, environment);
}

/* Destructors are run by the loader, then as now, so `fini` stays null. */
HIDDEN int __libc_start_main(Main main, int argc, char** argv, Constructor init, void (*fini)(void),
                             void (*loader_fini)(void), void* stack_end) {
  (void)init;
  return tutti_oldest_start(main, argc, argv, RunConstructors, fini, loader_fini, stack_end);
}
