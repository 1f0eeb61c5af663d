// What the address sanitizer is told in programs that load MPI, Gloo or oneCCL, which it was not
// built into:
// - The program and each plugin have a copy of the ground modules, which it takes for a mistake.
// - Leaks are looked for when the plugins are gone, and what they loaded with them: whose a leak is
//   cannot be told any more, and MPI's are many.

extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "detect_odr_violation=0:detect_leaks=0";
}
