#include "proxy/recv_connection.h"

#include <cstring>

namespace tutti {

static_assert(kNetWindow == kFifoSlots,
              "a connection opens with as many slots granted as its FIFO has");

RecvConnection::RecvConnection(EventLoop& loop, FifoMemory memory,
                               std::unique_ptr<NetRecvComm> comm, const std::string& peer)
    : ConnectionCore(loop, std::move(memory), *comm, "receiving", "from " + peer),
      comm_(std::move(comm)),
      fifo_(fifo()) {}

Result<bool> RecvConnection::Move() {
  const FifoView view = fifo();
  // Free slots wait for chunks ahead of the kernel, and thereby are granted to the sender.
  for (uint64_t free_until = fifo_.released() + kFifoSlots; posted() < free_until; CountPosted()) {
    const NetReceive slot = {view.data(posted()), view.slot_bytes};
    TUTTI_ASSIGN(NetRequest* const request, comm_->Irecv({&slot, 1}));
    if (!request) break;
    requests_[posted() % kNetWindow] = request;
  }
  TUTTI_ASSIGN(bool moved, comm_->Progress());
  while (done() < posted()) {
    NetRequest& request = *requests_[done() % kNetWindow];
    TUTTI_ASSIGN(const bool came, comm_->Test(request));
    if (!came) break;
    Publish(request.received[0]);
    CountDone();
    moved = true;
  }
  return moved;
}

void RecvConnection::Publish(const NetReceived& chunk) {
  // Where the slot's data lies depends on its length, which is known only now. The slot is free: it
  // was posted.
  std::byte* const place = fifo_.TryAcquire(chunk.bytes);
  if (chunk.bytes > 0 && chunk.bytes <= kInlineBytes) {
    std::memcpy(place, fifo_.view().data(done()), chunk.bytes);
  }
  fifo_.Publish(chunk.bytes, chunk.op_tag);
}

}  // namespace tutti
