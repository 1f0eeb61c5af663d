#include "comm/unknown.h"
#include "config/settings.h"
