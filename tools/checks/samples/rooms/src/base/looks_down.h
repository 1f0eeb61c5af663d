#include "comm/down.h"
