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
// Copies bytes as a NIC does: words of four bytes, one after the other, where the memory may be
// polled.
void Place(std::byte* to, const std::byte* from, size_t bytes);

// Writes reach memory by these functions (delivery.cc). Takes bytes of a write that has come.
void Deliver(Qp& pair, std::byte* to, const std::byte* bytes, size_t count);
// Has all that has come in place.
void DeliverAll(Qp& pair);
void DeliverAllOfEveryPair();
// Delivers what is due. Returns whether something is left that will be due later.
bool DeliverSome();
// Returns what the environment says.
Delivery DefaultDelivery();

}  // namespace fakeverbs
