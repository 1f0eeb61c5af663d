#if defined(__x86_64__)
#define TUTTI_REDUCE_NAMESPACE reduce_avx512
#define TUTTI_REDUCE_LEVEL 512
#include "base/reduce_kernels.h"
#endif
