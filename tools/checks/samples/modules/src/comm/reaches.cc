#include "gin_direct/card.h"
