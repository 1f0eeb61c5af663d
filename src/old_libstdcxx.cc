// Stands between libstdc++ and the wheel's backend of torch.distributed, so that the backend built
// with a new compiler also loads beside the libstdc++ of manylinux_2_28 (GLIBCXX_3.4.24). The
// backend shares libstdc++ with PyTorch, and cannot have a copy of its own.
//
// The definitions below are hidden in the backend, and replace functions that libstdc++ has since
// GCC 9, 11 or 12 only. Each definition calls an older function with the same effect.
// tools/checks/wheel refuses a file that asks for a newer function; the function then gets a
// definition here.

#include <ios>
#include <new>
#include <string>

#define HIDDEN __attribute__((visibility("hidden")))

[[noreturn]] HIDDEN void tutti_throw_bad_length() __asm__("_ZSt28__throw_bad_array_new_lengthv");
void tutti_throw_bad_length() { throw std::bad_array_new_length(); }

// std::stringbuf::str: the version of GCC 11 has a qualifier for `this`.
std::string tutti_text_of(const void* buffer) __asm__(
    "_ZNKSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
HIDDEN std::string tutti_text_of_kept(const void* buffer) __asm__(
    "_ZNKRSt7__cxx1115basic_stringbufIcSt11char_traitsIcESaIcEE3strEv");
std::string tutti_text_of_kept(const void* buffer) { return tutti_text_of(buffer); }

extern "C" {

// The constructors without arguments of std::ostringstream and std::stringstream. The older
// constructors take a mode.
void tutti_make_output(void* stream, std::ios_base::openmode mode) __asm__(
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1ESt13_Ios_Openmode");
HIDDEN void tutti_make_plain_output(void* stream) __asm__(
    "_ZNSt7__cxx1119basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void tutti_make_plain_output(void* stream) { tutti_make_output(stream, std::ios_base::out); }

void tutti_make_text(void* stream, std::ios_base::openmode mode) __asm__(
    "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1ESt13_Ios_Openmode");
HIDDEN void tutti_make_plain_text(void* stream) __asm__(
    "_ZNSt7__cxx1118basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
void tutti_make_plain_text(void* stream) {
  tutti_make_text(stream, std::ios_base::in | std::ios_base::out);
}

// std::condition_variable::wait: the version of GCC 12 differs in its exception specification only.
void tutti_oldest_wait(void* condition, void* lock);
__asm__(
    ".symver tutti_oldest_wait,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
HIDDEN void tutti_wait(void* condition, void* lock) __asm__(
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE");
void tutti_wait(void* condition, void* lock) { tutti_oldest_wait(condition, lock); }

// std::exception_ptr counts its references inside of libstdc++. A copy adds a reference, and the
// destructor takes one away; both have been exported since GCC 4.4, and an exception_ptr is a
// pointer to the exception.
void tutti_copy_exception(void** copy, void* const* from) __asm__(
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_");
void tutti_end_exception(void** pointer) __asm__("_ZNSt15__exception_ptr13exception_ptrD1Ev");

HIDDEN void tutti_add_reference(void** pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void tutti_add_reference(void** pointer) {
  void* copy = nullptr;
  tutti_copy_exception(&copy, pointer);
}
HIDDEN void tutti_take_reference(void** pointer) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void tutti_take_reference(void** pointer) {
  tutti_end_exception(pointer);
  *pointer = nullptr;
}
}
