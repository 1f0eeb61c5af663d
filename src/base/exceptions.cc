#include "base/exceptions.h"

#include <exception>
#include <new>
#include <stdexcept>

namespace tutti {

Status StatusOfException() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return SystemError("there is not enough memory");
  } catch (const std::length_error& error) {
    return SystemError("more memory was asked for than there can be: {}", error.what());
  } catch (const std::exception& error) {
    return InternalError("an exception came to the border of the library: {}", error.what());
  } catch (...) {
    return InternalError("an exception of an unknown kind came to the border of the library");
  }
}

}  // namespace tutti
