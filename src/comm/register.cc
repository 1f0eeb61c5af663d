// Buffers that all ranks register together.

#include <fmt/format.h>

#include "base/log.h"
#include "comm/communicator.h"

namespace tutti {

Status Communicator::RegisterBuffer(std::span<std::byte> buffer, int flags,
                                    const void** registration) {
  *registration = nullptr;
  // Whatever ends the communicator, on any rank, ends this as well.
  const std::atomic<bool>* const abort_flag = &watch_->stop_flag();
  const Watch::Step step(*watch_, "in ncclCommWindowRegister");
  const auto together = [&]() -> Status {
    struct Asked {
      uint64_t bytes = 0;
      int64_t flags = 0;
    };
    std::vector<Asked> asked(static_cast<size_t>(num_ranks()));
    asked[static_cast<size_t>(rank())] = {buffer.size(), flags};
    const Deadline deadline = InitDeadline();
    TUTTI_TRY(bootstrap_->AllGather(asked.data(), sizeof(Asked), deadline, abort_flag));
    for (size_t r = 1; r < asked.size(); ++r)
      if (asked[r].bytes != asked[0].bytes || asked[r].flags != asked[0].flags)
        return InvalidArgument(
            "the ranks register different windows: rank 0 {} bytes with flags {:#x}, and rank {} "
            "{} "
            "bytes with flags {:#x}",
            asked[0].bytes, asked[0].flags, r, asked[r].bytes, asked[r].flags);
    if (!gpu_ || num_ranks() == 1 || (flags & kSymmetricWindow) == 0) return Status::Ok();
    TUTTI_ASSIGN(const GpuPeers peers, DescribeGpus(deadline, abort_flag));
    Status verdict;
    TUTTI_ASSIGN(*registration, gpu_->Register(peers, buffer, &verdict));
    if (!verdict.ok())
      TUTTI_INFO(kLogInit, "a window of {} bytes gains nothing: {}", buffer.size(),
                 verdict.message());
    return Status::Ok();
  };
  Status status = together();
  if (status.ok() || status.code() == Code::kInvalidArgument) return status;
  status = watch_->FirstReason(std::move(status));
  if (watch_->stopped()) return watch_->StopReason();
  // Some ranks may have got further than others: nothing that all do together would fit any more.
  if (status.code() == Code::kTimeout) status = watch_->Explain(status, bootstrap_->LinkedRanks());
  watch_->Stop(status, /*tell=*/true);
  return status;
}

}  // namespace tutti
