#include "base/exceptions.h"

#include <array>
#include <exception>
#include <new>
#include <stdexcept>
#include <utility>

#include "base/mutex.h"

namespace tutti {
namespace {

// Failures made beforehand. When memory runs out a few threads notice at the same time; each takes
// a failure, and the next call with memory replaces the taken ones.
class Reserve {
 public:
  void Fill() {
    const MutexLock lock(mutex_);
    for (Status& failure : failures_)
      if (failure.ok()) failure = SystemError("there is not enough memory");
  }
  // Ends the process where none is left.
  Status Take() noexcept {
    const MutexLock lock(mutex_);
    for (Status& failure : failures_)
      if (!failure.ok()) return std::exchange(failure, Status());
    std::terminate();
  }

 private:
  Mutex mutex_;
  std::array<Status, 64> failures_ TUTTI_GUARDED_BY(mutex_);
};

Reserve& TheReserve() {
  static Reserve reserve;
  return reserve;
}

}  // namespace

void ReserveFailures() { TheReserve().Fill(); }

Status StatusOfException() noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      ReserveFailures();
      return SystemError("there is not enough memory");
    } catch (const std::length_error& error) {
      return SystemError("more memory was asked for than there can be: {}", error.what());
    } catch (const std::exception& error) {
      return InternalError("an exception came to the border of the library: {}", error.what());
    } catch (...) {
      return InternalError("an exception of an unknown kind came to the border of the library");
    }
  } catch (...) {
    return TheReserve().Take();
  }
}

}  // namespace tutti
