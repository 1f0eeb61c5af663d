#pragma once

// Serves one rank of a measurement: answers the driver's commands until the driver asks it to quit.
//
//   {"command": "hello", "library", "rank", "size", "alloc", "stream", "blocking", "bind"}
//                                         → {"version", "path", "pid"}
//   {"command": "id"}                     → {"id": hexadecimal}          (rank 0 only)
//   {"command": "page", "pid", "fd", "token"}
//                                         → {"found": bool}  (whether it reaches the barrier page)
//   {"command": "init", "id", "pages": bool, "patient": bool}
//                                         → {"ms"}
//   {"command": "prepare", "collective", "type", "reduction", "root", "bytes", "rotate"}
//                                         → {}
//   {"command": "check", "in_place"}      → {"wrong", "first"}
//   {"command": "measure", "in_place", "warmup", "iterations", "each"}
//                                         → {"ns": total, or a list}
//   {"command": "plan"}                   → {"text"}
//   {"command": "quit"}                   → {}
//
// A command that fails is answered by {"error": sentence}.

#include "base/unique_fd.h"

namespace tutti::tools {

// Serves until the driver says quit or ends the connection. Ranks may be threads of one process,
// with one call each.
void ServeRank(UniqueFd driver);

}  // namespace tutti::tools
