#include "backend/cuda/channel_ring.h"

TUTTI_FOR_ALL_TYPES(TUTTI_CHANNEL_REDUCTION)
TUTTI_CHANNEL_KERNEL(tutti_move_channel, RunChannelMove)
