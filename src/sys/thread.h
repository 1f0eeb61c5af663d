#pragma once

// Threads of the library. std::thread throws where the system grants no further thread (a limit of
// processes, a full container), and nothing may be thrown through the C API. A std::thread also
// inherits the caller's signal mask, so a handler of the program could run on a thread of the
// library.

#include <functional>
#include <string>
#include <thread>

#include "base/status.h"

namespace tutti {

// Starts a thread named `name` (at most 15 characters) on which all signals are blocked: they
// belong to the program's threads. SystemError when the system grants none.
Result<std::thread> StartThread(const std::string& name, std::function<void()> body);

}  // namespace tutti
