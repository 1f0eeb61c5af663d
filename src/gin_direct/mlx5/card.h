#pragma once

// An mlx5 card (ConnectX, BlueField) for kernels to drive: opened for DevX, with a protection
// domain.
//
//   ibverbs   device, port, protection domain, registered memory
//   DevX      UARs (pages of doorbell registers), umems (memory in which objects of the card lie),
//             completion queues and queue pairs (commands.h)
//
// Every object is a member that ends itself, in the order that the card requires.

#include <memory>
#include <string>
#include <vector>

#include "config/settings.h"
#include "gin_direct/card.h"
#include "gin_direct/mlx5/commands.h"
#include "gin_direct/mlx5/library.h"
#include "transport/net/verbs/devices.h"
#include "transport/net/verbs/options.h"

namespace tutti {

class Mlx5Card final : public Card {
 public:
  // Returns the ports that a rank could use, at least one. Fails where kernels can drive no port.
  static Result<std::vector<CardPort>> Find(const Settings& settings);
  // Opens the card of the port with this name.
  static Result<std::unique_ptr<Card>> Open(const Settings& settings, const std::string& port_name);
  ~Mlx5Card() override;
  Mlx5Card(const Mlx5Card&) = delete;
  Mlx5Card& operator=(const Mlx5Card&) = delete;

  const std::string& name() const override { return name_; }
  const CardEnd& end() const override { return end_; }
  Result<std::unique_ptr<CardMemory>> Register(std::span<std::byte> memory, uint64_t begin,
                                               CardOrdering ordering) override;
  Result<std::unique_ptr<CardMemory>> RegisterGpu(std::span<std::byte> memory, uint64_t begin,
                                                  CardOrdering ordering, int dmabuf,
                                                  uint64_t offset) override;
  bool takes_dmabuf() const override;
  std::vector<std::byte> QueueImage(size_t count, uint32_t depth) const override;
  Result<std::unique_ptr<CardQueueMemory>> RegisterQueues(std::span<std::byte> memory, int dmabuf,
                                                          uint64_t offset) override;
  Result<std::unique_ptr<CardQueues>> MakeQueues(size_t count, uint32_t depth,
                                                 std::unique_ptr<CardQueueMemory> memory) override;

  const Mlx5Library& mlx5() const { return mlx5_; }
  ibv_context& context() const { return *context_; }
  uint32_t domain_number() const { return domain_number_; }
  uint32_t event_queue() const { return event_queue_; }
  // Returns how a queue pair of this card reaches a queue pair of another card.
  Result<Mlx5Route> RouteTo(const CardEnd& remote, uint32_t number) const;
  // Returns the part of the route that depends on this card alone.
  Mlx5Route LocalRoute() const;
  // Returns the error for a refusal by the system or the card. `answer` is the card's answer to a
  // command.
  Status Refusal(int error, const char* what, std::span<const uint8_t> answer = {}) const;

 private:
  Mlx5Card(std::shared_ptr<const VerbsLibrary> verbs, const Mlx5Library& mlx5, VerbsPort port,
           const VerbsOptions& options);
  Status OpenDevice();
  unsigned AccessFor(CardOrdering ordering) const;
  Result<std::array<uint8_t, 6>> MacOf(const Mlx5Route& route) const;

  const std::shared_ptr<const VerbsLibrary> verbs_;
  const Mlx5Library mlx5_;
  const VerbsPort port_;
  const VerbsOptions options_;
  const std::string name_;
  CardEnd end_;
  ibv_context* context_ = nullptr;
  ibv_pd* domain_ = nullptr;
  uint32_t domain_number_ = 0;
  uint32_t event_queue_ = 0;
};

}  // namespace tutti
