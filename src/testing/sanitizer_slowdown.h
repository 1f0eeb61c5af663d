#pragma once

// For tests: how much longer a program may take under a sanitizer. Waits that only guard against
// hanging are multiplied by this factor.

namespace tutti {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr double kSanitizerSlowdown = 5;
#else
inline constexpr double kSanitizerSlowdown = 1;
#endif

}  // namespace tutti
