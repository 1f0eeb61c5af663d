#pragma once

// The interface of GIN direct (NCCL's GDAKI): kernels drive a network card themselves, by the
// functions of nccl_device/impl/gin_gdaki.h, and no thread of the host takes part. The rest of the
// library knows nothing else of the module gin_direct. A build without the module
// (TUTTI_GIN_DIRECT=OFF, or no headers of rdma-core) has no card, and FindDirectPorts fails with a
// sentence.
//
//   DirectCard       the opened card of a rank
//     CardMemory     memory that the card reaches by a key
//     DirectBackend  the queue pairs and tables of one device communicator
//
// A card outlives its memory registrations and backends. One thread at a time calls the functions
// of a card. The thread that made a backend calls Join, Offer and Retire.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "base/status.h"
#include "config/settings.h"
#include "devcomm/gin_plan.h"
#include "gin/backend.h"
#include "gin/card_memory.h"
#include "sys/event_loop.h"
#include "watch/watch.h"
#include "window/lsa_team.h"

namespace tutti {

// Holds the queue pairs and tables by which kernels of a device communicator drive a card. All
// ranks make their backends, exchange their offers, and join.
class DirectBackend : public GinBackend {
 public:
  bool is_direct() const override { return true; }
  // Writes this rank's offer, by which the other ranks join with it. REQUIRES:
  // DirectCard::OfferBytes() bytes.
  virtual void Offer(std::span<std::byte> offer) const = 0;
  // Joins with the offers of all ranks.
  virtual Status Join(const std::vector<std::span<const std::byte>>& offers) = 0;
  // Stops asking the card for errors. The queue pairs answer other ranks until the object ends.
  virtual void Retire() = 0;
};

class DirectCard {
 public:
  // Holds the parts of a backend. All pointers here outlive the backend.
  struct BackendParts {
    int rank = 0;
    int num_ranks = 1;
    LsaTeam team;
    GinPlan plan;
    EventLoop* loop = nullptr;
    Watch* watch = nullptr;
    std::function<std::string(int rank)> name_of;
  };

  virtual ~DirectCard() = default;
  // Returns the name of the card's port.
  virtual const std::string& name() const = 0;
  // Lets the card reach memory of the rank's device, whose first byte has the address `begin` in
  // entries. `begin` and the memory lie alike in their pages.
  virtual Result<std::unique_ptr<CardMemory>> Register(std::span<std::byte> memory, uint64_t begin,
                                                       CardOrdering ordering) = 0;
  // Returns the length of a rank's offer, in bytes, among `num_ranks` ranks.
  virtual size_t OfferBytes(const GinPlan& plan, int num_ranks) const = 0;
  virtual Result<std::unique_ptr<DirectBackend>> MakeBackend(BackendParts parts) = 0;
};

// Returns the ports that a rank could use, at least one. Fails where no card can be driven as the
// settings say.
Result<std::vector<CardPort>> FindDirectPorts(const Settings& settings);
// Opens the card of the port with this name for kernels of `gpu`, or of the host where `gpu` is
// null. The GPU outlives the card.
Result<std::unique_ptr<DirectCard>> OpenDirectCard(const Settings& settings,
                                                   const std::string& port,
                                                   const cuda::Device* gpu);

}  // namespace tutti
