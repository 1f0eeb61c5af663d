// Has a mutex without annotations, for the self-test of thread_safety. Never built.
#include <mutex>

std::mutex unannotated;
