#pragma once

// Ends a bench where something fails, with the library's sentence.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/status.h"

namespace tutti {

inline void Require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}
template <class T>
T Value(Result<T> result) {
  Require(result.status());
  return std::move(result).value();
}

}  // namespace tutti
