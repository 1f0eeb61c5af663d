#include "neighbour.h"
#include "cellar/x.h"
