#if defined(__x86_64__)
#define TUTTI_REDUCE_NAMESPACE reduce_avx2
#define TUTTI_REDUCE_LEVEL 2
#include "base/reduce_kernels.h"
#endif
