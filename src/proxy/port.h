#pragma once

#include "kernels/port.h"
