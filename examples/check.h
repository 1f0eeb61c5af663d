/* Helpers of the examples: every call is checked, and a failure is reported with its reason. */

#ifndef TUTTI_EXAMPLES_CHECK_H_
#define TUTTI_EXAMPLES_CHECK_H_

#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

/* Runs a call of the library; ends the program with the library's error message if the call
   fails. */
#define CHECK(call)                                                      \
  do {                                                                   \
    const ncclResult_t check_result = (call);                            \
    if (check_result != ncclSuccess) {                                   \
      fprintf(stderr, "%s:%d: %s: %s. %s\n", __FILE__, __LINE__, #call,  \
              ncclGetErrorString(check_result), ncclGetLastError(NULL)); \
      exit(EXIT_FAILURE);                                                \
    }                                                                    \
  } while (0)

/* Ends the program with a message (printf-style) if a condition of the example does not hold. */
#define REQUIRE(condition, ...)                       \
  do {                                                \
    if (!(condition)) {                               \
      fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
      fprintf(stderr, __VA_ARGS__);                   \
      fprintf(stderr, "\n");                          \
      exit(EXIT_FAILURE);                             \
    }                                                 \
  } while (0)

/* Memory for `count` floats, all `value`. Freed with free(). */
static inline float* NewFloats(size_t count, float value) {
  float* floats = malloc((count > 0 ? count : 1) * sizeof(float));
  REQUIRE(floats != NULL, "no memory for %zu floats", count);
  for (size_t i = 0; i < count; ++i) floats[i] = value;
  return floats;
}

/* Every one of `count` floats must be `expected`. */
static inline void ExpectAll(const float* floats, size_t count, float expected, int rank) {
  for (size_t i = 0; i < count; ++i) {
    REQUIRE(floats[i] == expected, "rank %d: element %zu is %g, not %g", rank, i, (double)floats[i],
            (double)expected);
  }
}

#endif /* TUTTI_EXAMPLES_CHECK_H_ */
