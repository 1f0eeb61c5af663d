#include "testing/fake.h"
#include "base/looks_down.h"
#include "nccl.h"
