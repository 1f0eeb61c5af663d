#pragma once

#include "kernels/fifo.h"
