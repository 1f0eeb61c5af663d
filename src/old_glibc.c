/* Stands between the C library and the wheel's library and program, so that files built with a new
 * glibc also load with glibc 2.28.
 *
 * A program linked with glibc 2.34 asks the loader for dlopen of version GLIBC_2.34, though the
 * function has not changed for decades, and an older system refuses to load the program. The
 * definitions below are hidden in the library or program of the link, and replace the definitions
 * of the C library in all code of the link, archives included. Each definition of the table calls
 * the oldest version of the same function; the remaining definitions are for functions that
 * glibc 2.28 lacks.
 *
 * Before glibc 2.34 dlopen was in libdl.so.2 and the functions of threads were in libpthread.so.0,
 * so the link names both (cmake/TuttiWheel.cmake). tools/checks/wheel refuses a file that asks for
 * a newer function, and names the function; the function gets a row here. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The first version of a function of glibc: by the history of the function on x86-64, and the first
 * version of the port on arm64. */
#if defined(__x86_64__)
#define SINCE(version) "GLIBC_" version
#elif defined(__aarch64__)
#define SINCE(version) "GLIBC_2.17"
#else
#error "the oldest versions of glibc's functions are known for x86-64 and arm64 only"
#endif

#define HIDDEN __attribute__((visibility("hidden")))

/* pthread.h declares an argument as never read, and the compiler reports a mistake here. */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#define OLDEST(version, result, name, parameters, arguments)           \
  result tutti_oldest_##name parameters;                               \
  __asm__(".symver tutti_oldest_" #name "," #name "@" SINCE(version)); \
  HIDDEN result name parameters { return tutti_oldest_##name arguments; }

/* clang-format off: a table */
OLDEST("2.2.5", void*, dlopen, (const char* file, int mode), (file, mode))
OLDEST("2.2.5", int, dlclose, (void* handle), (handle))
OLDEST("2.2.5", char*, dlerror, (void), ())
OLDEST("2.2.5", void*, dlsym, (void* restrict handle, const char* restrict name), (handle, name))
OLDEST("2.2.5", void*, dlvsym,
       (void* restrict handle, const char* restrict name, const char* restrict version),
       (handle, name, version))
OLDEST("2.2.5", int, dladdr, (const void* address, Dl_info* info), (address, info))
OLDEST("2.3.3", int, dlinfo, (void* restrict handle, int request, void* restrict argument),
       (handle, request, argument))

OLDEST("2.2.5", int, pthread_create,
       (pthread_t* restrict thread, const pthread_attr_t* restrict attributes,
        void* (*start)(void*), void* restrict argument),
       (thread, attributes, start, argument))
OLDEST("2.2.5", int, pthread_join, (pthread_t thread, void** value), (thread, value))
OLDEST("2.2.5", int, pthread_detach, (pthread_t thread), (thread))
OLDEST("2.2.5", int, pthread_once, (pthread_once_t * once, void (*routine)(void)), (once, routine))
OLDEST("2.2.5", int, pthread_key_create, (pthread_key_t * key, void (*destroy)(void*)),
       (key, destroy))
OLDEST("2.2.5", int, pthread_key_delete, (pthread_key_t key), (key))
OLDEST("2.2.5", void*, pthread_getspecific, (pthread_key_t key), (key))
OLDEST("2.2.5", int, pthread_setspecific, (pthread_key_t key, const void* value), (key, value))
OLDEST("2.2.5", int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
OLDEST("2.2.5", int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
OLDEST("2.2.5", int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
OLDEST("2.2.5", int, pthread_rwlock_unlock, (pthread_rwlock_t * lock), (lock))
OLDEST("2.2.5", int, pthread_attr_getstacksize,
       (const pthread_attr_t* restrict attributes, size_t* restrict bytes), (attributes, bytes))
OLDEST("2.18", int, pthread_getattr_default_np, (pthread_attr_t * attributes), (attributes))
OLDEST("2.12", int, pthread_setname_np, (pthread_t thread, const char* name), (thread, name))
OLDEST("2.2.5", int, pthread_sigmask,
       (int how, const sigset_t* restrict set, sigset_t* restrict old), (how, set, old))

/* The versions since 2.29 leave out the error reports of 1980. The values are the same. */
OLDEST("2.2.5", double, exp, (double x), (x))
OLDEST("2.2.5", double, log, (double x), (x))
OLDEST("2.2.5", double, pow, (double x, double y), (x, y))
OLDEST("2.2.5", double, exp2, (double x), (x))
OLDEST("2.2.5", double, log2, (double x), (x))
OLDEST("2.2.5", double, hypot, (double x, double y), (x, y))
/* clang-format on */

/* Since 2.32: whether atomic operations may be left out, because the process has a single thread.
 * With 0 no atomic operation is left out. */
HIDDEN char __libc_single_threaded = 0;

HIDDEN pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

/* Until 2.33 stat and its like were inline functions. On 64-bit machines the kernel and the C library
 * have one struct stat. */
HIDDEN int fstatat(int folder, const char* restrict path, struct stat* restrict result, int flags) {
  return (int)syscall(SYS_newfstatat, folder, path, result, flags);
}
HIDDEN int stat(const char* restrict path, struct stat* restrict result) {
  return fstatat(AT_FDCWD, path, result, 0);
}
HIDDEN int lstat(const char* restrict path, struct stat* restrict result) {
  return fstatat(AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW);
}
HIDDEN int fstat(int file, struct stat* result) { return (int)syscall(SYS_fstat, file, result); }
HIDDEN int stat64(const char* restrict path, struct stat64* restrict result) {
  return fstatat(AT_FDCWD, path, (struct stat*)result, 0);
}
HIDDEN int fstat64(int file, struct stat64* result) { return fstat(file, (struct stat*)result); }

/* Read by std::random_device, since 2.36. arc4random has no way to report an error. */
HIDDEN uint32_t arc4random(void) {
  uint32_t value = 0;
  while (getrandom(&value, sizeof(value), 0) != (ssize_t)sizeof(value)) {
  }
  return value;
}

/* Since 2.30. Calls the function of the system if the system has one. Otherwise moves the deadline
 * to the clock of all condition variables, so a change of that clock makes the wait end early or
 * late. The caller looks at its own clock after the wait. */
HIDDEN int pthread_cond_clockwait(pthread_cond_t* restrict condition,
                                  pthread_mutex_t* restrict mutex, clockid_t clock,
                                  const struct timespec* restrict deadline) {
  typedef int (*Function)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  static Function known;
  static int asked;
  if (!__atomic_load_n(&asked, __ATOMIC_ACQUIRE)) {
    void* const found = dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
    __atomic_store_n(&known, (Function)found, __ATOMIC_RELAXED);
    __atomic_store_n(&asked, 1, __ATOMIC_RELEASE);
  }
  const Function function = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (function) return function(condition, mutex, clock, deadline);
  struct timespec now, wall;
  if (clock_gettime(clock, &now) != 0) return errno;
  clock_gettime(CLOCK_REALTIME, &wall);
  wall.tv_sec += deadline->tv_sec - now.tv_sec;
  wall.tv_nsec += deadline->tv_nsec - now.tv_nsec;
  if (wall.tv_nsec < 0) {
    wall.tv_nsec += 1000000000;
    --wall.tv_sec;
  } else if (wall.tv_nsec >= 1000000000) {
    wall.tv_nsec -= 1000000000;
    ++wall.tv_sec;
  }
  return pthread_cond_timedwait(condition, mutex, &wall);
}

/* The sentence of an error in English, since 2.32. */
HIDDEN const char* strerrordesc_np(int error) {
  static locale_t english;
  locale_t locale = __atomic_load_n(&english, __ATOMIC_ACQUIRE);
  if (!locale) {
    locale_t none = (locale_t)0;
    locale = newlocale(LC_ALL_MASK, "C", none);
    if (!locale) return NULL;
    if (!__atomic_compare_exchange_n(&english, &none, locale, 0, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
      freelocale(locale);
      locale = none;
    }
  }
  return strerror_l(error, locale);
}

/* clang-format off: a table */
#define NAME(value) [value] = #value,
static const char* const kErrorNames[] = {
    NAME(EPERM) NAME(ENOENT) NAME(ESRCH) NAME(EINTR) NAME(EIO) NAME(ENXIO) NAME(E2BIG) NAME(ENOEXEC)
        NAME(EBADF) NAME(ECHILD) NAME(ENOMEM) NAME(EACCES) NAME(EFAULT) NAME(EBUSY) NAME(EEXIST)
            NAME(EXDEV) NAME(ENODEV) NAME(ENOTDIR) NAME(EISDIR) NAME(EINVAL) NAME(ENFILE) NAME(
                EMFILE) NAME(ENOTTY) NAME(ETXTBSY) NAME(EFBIG) NAME(ENOSPC) NAME(ESPIPE) NAME(EROFS)
                NAME(EMLINK) NAME(EPIPE) NAME(EDOM) NAME(ERANGE) NAME(EDEADLK) NAME(ENAMETOOLONG)
                    NAME(ENOLCK) NAME(ENOSYS) NAME(ENOTEMPTY) NAME(ELOOP) NAME(EPROTO) NAME(EBADMSG)
                        NAME(EOVERFLOW) NAME(EILSEQ) NAME(EUSERS) NAME(ENOTSOCK) NAME(EDESTADDRREQ)
                            NAME(EMSGSIZE) NAME(EPROTOTYPE) NAME(ENOPROTOOPT) NAME(EPROTONOSUPPORT)
                                NAME(ESOCKTNOSUPPORT) NAME(EOPNOTSUPP) NAME(EPFNOSUPPORT)
                                    NAME(EAFNOSUPPORT) NAME(EADDRINUSE) NAME(EADDRNOTAVAIL)
                                        NAME(ENETDOWN) NAME(ENETUNREACH) NAME(ENETRESET)
                                            NAME(ECONNABORTED) NAME(ECONNRESET) NAME(ENOBUFS)
                                                NAME(EISCONN) NAME(ENOTCONN) NAME(ESHUTDOWN) NAME(
                                                    ETIMEDOUT) NAME(ECONNREFUSED) NAME(EHOSTDOWN)
                                                    NAME(EHOSTUNREACH) NAME(EALREADY)
                                                        NAME(EINPROGRESS) NAME(ESTALE) NAME(EDQUOT)
                                                            NAME(ECANCELED) NAME(EREMOTEIO)};
#undef NAME
/* clang-format on */

/* The name of an error, since 2.32, for the errors of the library's system calls. */
HIDDEN const char* strerrorname_np(int error) {
  const int count = (int)(sizeof(kErrorNames) / sizeof(kErrorNames[0]));
  return error >= 0 && error < count ? kErrorNames[error] : NULL;
}
