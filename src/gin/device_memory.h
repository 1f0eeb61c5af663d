#pragma once

// The layout of the memory that the kernels of a GPU and its proxy share.
//
//   memory of the host, shared by the ranks of the LSA team, pinned   memory of the GPU
//     signals, counters      proxies add, kernels poll                  contexts (GinContext), and their
//                                                                       records (gin/card_record.h)
//     consumer indices       the proxy counts, kernels poll             producer indices
//     descriptors            kernels post, the proxy takes              values of signals at their reset
//     values                 8 bytes of a descriptor each, for copies
//     stage                  what is copied within the GPU passes it
//     mailboxes              of the ranks outside the LSA team (mail.h)
//
// Every look of a kernel at memory of the host crosses the bus, about a microsecond. Words that
// only kernels change lie in the GPU.

#include <cstddef>
#include <cstdint>

#include "base/rounding.h"
#include "devcomm/gin_plan.h"
#include "gin/card_record.h"
#include "gin/mail.h"
#include "nccl_device/impl/gin_descriptor.h"
#include "window/lsa_team.h"

namespace tutti {

// Offsets in the window of the host, the same on all ranks.
struct GinHostLayout {
  static constexpr size_t kLine = 128;
  // Pieces this long move at the speed of the bus. Copies of 32 MiB between GPU and host were seen
  // to wait for a kernel that filled the GPU.
  static constexpr size_t kStageBytes = 256 << 10;

  // Adds a part behind the first `bytes`, and returns where the part begins.
  static size_t Take(size_t size, size_t& bytes) {
    const size_t begin = bytes;
    bytes = RoundUp(bytes + size, kLine);
    return begin;
  }

  GinHostLayout(const GinPlan& plan, const LsaTeam& team)
      : num_peers(plan.num_queues - (plan.connection == NCCL_GIN_CONNECTION_FULL
                                         ? static_cast<uint32_t>(team.size)
                                         : 1)),
        mail(GinMailLayout::For(num_peers)) {
    const auto contexts = static_cast<size_t>(plan.num_contexts);
    const size_t queues = contexts * plan.num_queues;
    signals_at = GinHostLayout::Take(contexts * plan.num_signals * sizeof(uint64_t), bytes);
    counters_at = GinHostLayout::Take(contexts * plan.num_counters * sizeof(uint64_t), bytes);
    consumers_at = GinHostLayout::Take(queues * sizeof(uint32_t), bytes);
    values_at = GinHostLayout::Take(queues * plan.queue_depth * sizeof(uint64_t), bytes);
    descriptors_at =
        GinHostLayout::Take(queues * plan.queue_depth * sizeof(device::GinDescriptor), bytes);
    scratch_at = GinHostLayout::Take(kLine, bytes);
    stage_at = GinHostLayout::Take(kStageBytes, bytes);
    mail_at = GinHostLayout::Take(num_peers * mail.bytes(), bytes);
  }

  // Returns the place of `rank` among the ranks with mailboxes for a rank of the team that begins
  // with `first`.
  static size_t MailNumber(const GinPlan& plan, int rank, int first, int team_size) {
    if (plan.connection == NCCL_GIN_CONNECTION_FULL)
      return static_cast<size_t>(rank < first ? rank : rank - team_size);
    const int team = rank / team_size, own = first / team_size;
    return static_cast<size_t>(team < own ? team : team - 1);
  }
  size_t MailAt(size_t number) const { return mail_at + number * mail.bytes(); }

  size_t num_peers;
  GinMailLayout mail;
  size_t signals_at, counters_at, consumers_at, values_at, descriptors_at, scratch_at, stage_at,
      mail_at;
  size_t bytes = 0;
};

// Offsets in the memory of the GPU.
struct GinBlockLayout {
  explicit GinBlockLayout(const GinPlan& plan) {
    const auto contexts = static_cast<size_t>(plan.num_contexts);
    const size_t queues = contexts * plan.num_queues;
    GinHostLayout::Take(GinHostLayout::kLine, bytes);
    contexts_at = GinHostLayout::Take(
        contexts * (sizeof(device::GinContext) + sizeof(ncclGinGdakiGPUContext)), bytes);
    producers_at = GinHostLayout::Take(queues * sizeof(uint32_t), bytes);
    resets_at = GinHostLayout::Take(contexts * plan.num_signals * sizeof(uint64_t), bytes);
    issued_gets_at = GinHostLayout::Take(queues * sizeof(uint32_t), bytes);
    visible_gets_at = GinHostLayout::Take(queues * sizeof(uint32_t), bytes);
    scratch_at = GinHostLayout::Take(kScratchBytes, bytes);
  }

  static constexpr size_t kScratchBytes = 64 << 10;
  // A line of zeros lies ahead of the contexts: kernels of a GPU call no function of the host
  // (GinHostCalls).
  size_t contexts_at, producers_at, resets_at, issued_gets_at, visible_gets_at, scratch_at;
  size_t bytes = 0;
};

}  // namespace tutti
