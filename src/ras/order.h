#pragma once

// The kinds of collectives in the order of NCCL's answers.

#include <array>

#include "plan/work.h"

namespace tutti::ras {

// The first five are those that NCCL counts.
inline constexpr std::array kCounted = {
    Collective::kBroadcast,      Collective::kReduce,    Collective::kAllGather,
    Collective::kReduceScatter,  Collective::kAllReduce, Collective::kAlltoAll,
    Collective::kGather,         Collective::kScatter,   Collective::kAllGatherV,
    Collective::kReduceScatterV, Collective::kAlltoAllV, Collective::kBarrier,
    Collective::kGatherV,        Collective::kScatterV};
static_assert(kCounted.size() == kNumCollectives - 1);  // all but kSendRecv

}  // namespace tutti::ras
