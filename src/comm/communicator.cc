#include "comm/communicator.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/log.h"

namespace tutti {

Communicator::~Communicator() {
  if (operations_) operations_->Finish();
  if (watch_) watch_->StopListening(process_.loop());
  operations_.reset();  // the watch's stop hook reaches into these until here
  watch_.reset();
  bootstrap_.reset();
}

int Communicator::LocalRank() const {
  const std::vector<int>& here = operations_->machines().here;
  return static_cast<int>(std::find(here.begin(), here.end(), rank()) - here.begin());
}

Result<Operations::Registration> Communicator::RegisterBuffer(std::span<std::byte> buffer,
                                                              int flags) {
  const Watch::Step step(*watch_, "in ncclCommWindowRegister");
  Operations::Registration registration;
  Status status = Register(buffer, flags, registration);
  if (status.ok()) return registration;
  if (status.code() == Code::kInvalidArgument) return status;
  status = watch_->FirstReason(std::move(status));
  if (watch_->stopped()) return watch_->StopReason();
  // Some ranks may have got further than others: nothing that all do together would fit any more.
  if (status.code() == Code::kTimeout) status = watch_->Explain(status, bootstrap_->LinkedRanks());
  watch_->Stop(status, /*tell=*/true);
  return status;
}

Status Communicator::Register(std::span<std::byte> buffer, int flags,
                              Operations::Registration& registration) {
  // Whatever ends the communicator, on any rank, ends this as well.
  const std::atomic<bool>* const abort_flag = &watch_->stop_flag();
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
          "the ranks register different windows: rank 0 {} bytes with flags {:#x}, and rank {} {} "
          "bytes with flags {:#x}",
          asked[0].bytes, asked[0].flags, r, asked[r].bytes, asked[r].flags);
  if ((flags & kSymmetricWindow) == 0) return Status::Ok();
  TUTTI_ASSIGN(registration, operations_->Register(buffer, deadline, abort_flag));
  if (!registration.refused.ok())
    TUTTI_INFO(kLogInit, "a window of {} bytes gains nothing: {}", buffer.size(),
               registration.refused.message());
  return Status::Ok();
}

std::string Communicator::DescribeAsJson() const {
  std::string peers;
  for (int r = 0; r < num_ranks(); ++r) {
    const PeerInfo& peer = peers_[static_cast<size_t>(r)];
    // A host name has no characters that JSON would escape.
    peers += fmt::format("{}{{\"rank\": {}, \"host\": \"{}\", \"pid\": {}, \"transport\": \"{}\"}}",
                         r == 0 ? "" : ", ", r, peer.host, peer.pid,
                         r == rank() ? "self" : operations_->TransportTo(r));
  }
  const std::vector<int>& leaders = operations_->machines().leader;
  const std::set<int> machines(leaders.begin(), leaders.end());
  return fmt::format("{{\"rank\": {}, \"ranks\": {}, \"hosts\": {}, \"peers\": [{}]}}", rank(),
                     num_ranks(), machines.size(), peers);
}

void Communicator::LogTransports() const {
  TUTTI_INFO(kLogInit, "communicator {}{}{:016x}, rank {} of {}: {}", name_,
             name_.empty() ? "" : " ", bootstrap_->id(), rank(), num_ranks(),
             operations_->DescribeTransports());
}

}  // namespace tutti
