// SPDX-License-Identifier: Apache-2.0
// Messages between the GPUs of two ranks. The messages of one startCoalescing run together, on the
// group's communicator. All further messages run on a communicator of the two ranks alone, in the
// order in which both ask for them. The first message of a pair waits on the host until the other
// rank asks for its first.

#include <algorithm>

#include "backend.h"
#include "checks.h"
#include "rendezvous.h"

namespace tutti_c10d {
namespace {

using c10d::OpType;

void AddMessage(Operation& operation, const Library& library, const at::Tensor& tensor, bool sends,
                int peer) {
  if (tensor.nbytes() == 0) return;
  operation.Add([data = tensor.data_ptr(), bytes = tensor.nbytes(), sends, peer,
                 send = library.ncclSend,
                 receive = library.ncclRecv](ncclComm_t comm, cudaStream_t stream) {
    return sends ? send(data, bytes, ncclUint8, peer, comm, stream)
                 : receive(data, bytes, ncclUint8, peer, comm, stream);
  });
}

}  // namespace

std::shared_ptr<DeviceCommunicator> TuttiBackend::PairFor(int source, int target, int tag,
                                                          at::Device device) {
  const int low = std::min(source, target), high = std::max(source, target);
  const std::tuple key(low, high, tag, static_cast<int>(device.index()));
  int number = 0;  // A pair that uses several devices brings them in one order.
  {
    const MutexLock lock(devices_mutex_);
    CheckDevicesOpen();
    const auto found = pairs_.find(key);
    if (found != pairs_.end()) return found->second;
    for (const auto& [other, communicator] : pairs_)
      number += std::tie(std::get<0>(other), std::get<1>(other), std::get<2>(other)) ==
                std::tie(low, high, tag);
  }
  Meeting meeting = MeetingWith(rank_ == low ? high : low,
                                c10::str("gpus/", low, "/", high, "/", tag, "/", number));
  meeting.rank = rank_ == low ? 0 : 1;
  auto made = NewOnDevice(std::move(meeting), device);
  const MutexLock lock(devices_mutex_);
  CheckDevicesOpen();
  return pairs_[key] = std::move(made);
}

WorkPtr TuttiBackend::PutDeviceMessage(const Tensors& tensors, int source, int target, int tag) {
  const at::Tensor& tensor = tensors[0];
  const bool sends = source == rank_;
  const Asked asked = {sends ? OpType::SEND : OpType::RECV, sends ? "tutti:send" : "tutti:recv",
                       tensors, tensors};
  if (coalesced_) {
    TORCH_CHECK_VALUE(coalesced_messages_.tensors.empty() ||
                          coalesced_messages_.tensors[0].device() == tensor.device(),
                      "messages that are coalesced lie on one device");
    AddMessage(coalesced_messages_.operation, *library_, tensor, sends, sends ? target : source);
    coalesced_messages_.tensors.push_back(tensor);
    coalesced_messages_.works.push_back(
        NewDeviceWork(asked, DeviceFor(tensor.device()).communicator));
    return coalesced_messages_.works.back();
  }
  const auto communicator = PairFor(source, target, tag, tensor.device());
  const StreamScope scope(communicator.get(), /*waits=*/false);
  Operation operation;
  const int peer = sends ? target : source;
  AddMessage(operation, *library_, tensor, sends, peer > rank_ ? 1 : 0);
  const auto work = NewDeviceWork(asked, communicator);
  communicator->Run(operation);
  work->Queued();
  return work;
}

void TuttiBackend::RunCoalescedMessages() {
  const CoalescedMessages messages = std::exchange(coalesced_messages_, {});
  if (messages.works.empty()) return;
  const Place place(*this, messages.tensors, /*waits_at_once=*/false);
  place.device->communicator->Run(messages.operation);
  for (const auto& work : messages.works) work->Queued();
}

}  // namespace tutti_c10d
