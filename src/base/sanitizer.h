#pragma once

// Tells the thread sanitizer about order that the sanitizer cannot see by itself. The sanitizer
// knows memory by its addresses, and each rank of a process maps the shared memory at an address of
// its own. The sanitizer therefore sees neither the data in shared memory nor that a flag in shared
// memory hands over a user's buffer, whose address is the same for all.
//
// Called around such a flag: before the flag is raised and after the flag was seen. No code in
// other builds.

namespace tutti {

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

// Stands for all flags: orders more than they do. A missing flag may go unnoticed between threads;
// never the other way round.
inline char sanitizer_flag;
inline void AnnotateRaise() { __tsan_release(&sanitizer_flag); }
inline void AnnotateSeen() { __tsan_acquire(&sanitizer_flag); }
#else
inline void AnnotateRaise() {}
inline void AnnotateSeen() {}
#endif

}  // namespace tutti
