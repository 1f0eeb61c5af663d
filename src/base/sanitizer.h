#pragma once

// Tells the thread sanitizer what it cannot see by itself. It knows memory by its addresses, and
// each rank of a process maps the memory they share at an address of its own: the sanitizer sees
// neither the data there nor that a flag in it hands over a user's buffer, which has one address
// for all.
//
// Called around such a flag: before it is raised and after it was seen. No code in other builds.

namespace tutti {

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);

// Stands for all flags: orders more than they do, so that a missing one may go unnoticed between
// threads; never the other way round.
inline char sanitizer_flag;
inline void AnnotateRaise() { __tsan_release(&sanitizer_flag); }
inline void AnnotateSeen() { __tsan_acquire(&sanitizer_flag); }
#else
inline void AnnotateRaise() {}
inline void AnnotateSeen() {}
#endif

}  // namespace tutti
