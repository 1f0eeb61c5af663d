// The instructions of every machine of the architecture (SSE2 on x86-64).
#define TUTTI_REDUCE_NAMESPACE reduce_baseline
#define TUTTI_REDUCE_LEVEL 0
#include "base/reduce_kernels.h"
