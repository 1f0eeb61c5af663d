#pragma once

// Queue pairs of the stand-in: what is posted to them and what comes of it.

#include "state.h"

namespace fakeverbs {

std::array<uint8_t, 16> GidOf(const PortSpec& port);
uint16_t LidOf(const PortSpec& port);

int PostSend(ibv_qp* pair, ibv_send_wr* work, ibv_send_wr** refused);
int PostReceive(ibv_qp* pair, ibv_recv_wr* work, ibv_recv_wr** refused);

// All of these REQUIRE that the state's lock is held.

// Returns the queue pair that an event is about, or null.
Qp* PairOf(const ibv_async_event& event);
// Takes a part of a message that came for a queue pair of this process. Returns whether an answer
// is due, in `answer`.
bool Take(const Frame& frame, const std::byte* bytes, Frame& answer);
// Takes an answer, or a part of one.
void TakeAnswer(const Frame& frame, const std::byte* bytes);
// Lets others run for a moment, now and then. Needs no lock; the NIC's thread.
void PauseByChance();
// Copies bytes as a NIC does: words of four bytes, one after the other, where the memory may be
// polled.
void Place(std::byte* to, const std::byte* from, size_t bytes);
// The same for a write of several lines of the cache: in order, with a pause in between, or, where
// the memory is registered with relaxed ordering, with later lines first.
void PlaceInOrder(std::byte* to, const std::byte* from, size_t bytes);
void PlaceRelaxed(std::byte* to, const std::byte* from, size_t bytes);

// Writes reach memory by these functions (delivery.cc). Takes bytes of a write to a registration.
void Deliver(Qp& pair, const Region& region, std::byte* to, const std::byte* bytes, size_t count);
// Has all that has come in place, or all but writes to GPUs.
void DeliverAll(Qp& pair);
void DeliverToHost(Qp& pair);
// The same for all that has come by a device.
void DeliverAllOf(const Device& device);
void DeliverAllOfEveryPair();
// Writes what the last atomic operation of a device, or of each, writes. Returns whether there was
// anything to write.
bool LandAtomic(Device& device);
bool LandAtomics();
// Delivers what is due. Returns whether something is left that will be due later.
bool DeliverSome();
// Returns whether something has come that is not in place.
bool Waits();
// Returns what the environment says.
Delivery DefaultDelivery();

}  // namespace fakeverbs
