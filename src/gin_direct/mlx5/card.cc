#include "gin_direct/mlx5/card.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "gin_direct/mlx5/queues.h"
#include "transport/net/verbs/fault.h"

namespace tutti {
namespace {

// Most reads and atomic operations under way on a queue pair: enough to fill a link with signals,
// and no more than small cards have room for.
constexpr int kMostReads = 16;
constexpr uint8_t kHops = 255;

class Mlx5Memory final : public CardMemory {
 public:
  Mlx5Memory(const VerbsLibrary& verbs, ibv_mr& region) : verbs_(verbs), region_(region) {}
  ~Mlx5Memory() override { verbs_.dereg_mr(&region_); }
  uint32_t local_key() const override { return device::mlx5::BigEndian(region_.lkey); }
  uint32_t remote_key() const override { return device::mlx5::BigEndian(region_.rkey); }

 private:
  const VerbsLibrary& verbs_;
  ibv_mr& region_;
};

// The libraries for cards, and the ports that kernels can drive.
struct Mlx5Ports {
  std::shared_ptr<const VerbsLibrary> verbs;
  Mlx5Library mlx5;
  std::vector<VerbsPort> usable;  // not empty
};

// Names the first missing part in the error: a library, an active port, or a card of the right
// kind.
Result<Mlx5Ports> FindPorts(const Settings& settings) {
  Mlx5Ports found;
  TUTTI_ASSIGN(const VerbsLibrary verbs, LoadVerbsLibrary(settings.ib_library));
  found.verbs = std::make_shared<const VerbsLibrary>(verbs);
  if (verbs.reg_mr_iova2 == nullptr)
    return InvalidUsage("{} is too old for GIN direct: it lacks ibv_reg_mr_iova2",
                        settings.ib_library);
  TUTTI_ASSIGN(found.mlx5, LoadMlx5Library(settings.mlx5_library));
  TUTTI_ASSIGN(VerbsPorts ports, FindVerbsPorts(found.verbs, settings));
  if (ports.usable.empty()) return InvalidUsage("there is no active InfiniBand or RoCE port");
  std::erase_if(ports.usable, [&](const VerbsPort& port) {
    return !found.mlx5.is_supported(port.device->context().device);
  });
  if (ports.usable.empty()) return InvalidUsage("no active port is one of an mlx5 card");
  found.usable = std::move(ports.usable);
  return found;
}

}  // namespace

Result<std::vector<CardPort>> Mlx5Card::Find(const Settings& settings) {
  TUTTI_ASSIGN(const Mlx5Ports found, FindPorts(settings));
  std::vector<CardPort> ports;
  for (const VerbsPort& port : found.usable)
    ports.push_back({.name = port.Name(),
                     .pci_path = port.device->pci_path(),
                     .speed_mbps = static_cast<uint32_t>(std::max(port.speed_mbps, int64_t{0})),
                     .number = port.number,
                     .guid = port.device->guid()});
  return ports;
}

Result<std::unique_ptr<Card>> Mlx5Card::Open(const Settings& settings,
                                             const std::string& port_name) {
  TUTTI_ASSIGN(const Mlx5Ports found, FindPorts(settings));
  const auto port =
      std::find_if(found.usable.begin(), found.usable.end(),
                   [&](const VerbsPort& usable) { return usable.Name() == port_name; });
  if (port == found.usable.end()) return InvalidUsage("the port {} has gone", port_name);
  std::unique_ptr<Mlx5Card> card(
      new Mlx5Card(found.verbs, found.mlx5, *port, VerbsOptions::From(settings)));
  TUTTI_TRY(card->OpenDevice());
  return std::unique_ptr<Card>(std::move(card));
}

Mlx5Card::Mlx5Card(std::shared_ptr<const VerbsLibrary> verbs, const Mlx5Library& mlx5,
                   VerbsPort port, const VerbsOptions& options)
    : verbs_(std::move(verbs)),
      mlx5_(mlx5),
      port_(std::move(port)),
      options_(options),
      name_(port_.Name()) {
  end_.gid = port_.gid.bytes;
  end_.lid = port_.lid;
  end_.mtu = static_cast<uint8_t>(port_.mtu);
  end_.ethernet = port_.ethernet ? 1 : 0;
}

// Queue pairs made by commands need the numbers of the protection domain and of an event queue,
// which libibverbs does not show.
Status Mlx5Card::OpenDevice() {
  mlx5dv_context_attr attributes = {};
  attributes.flags = MLX5DV_CONTEXT_FLAGS_DEVX;
  errno = 0;
  context_ = mlx5_.open_device(port_.device->context().device, &attributes);
  if (!context_) return Refusal(errno, "opening it for DevX failed");
  domain_ = verbs_->alloc_pd(context_);
  if (!domain_) return Refusal(errno, "allocating a protection domain failed");
  mlx5dv_pd domain = {};
  mlx5dv_obj object = {};
  object.pd.in = domain_;
  object.pd.out = &domain;
  if (const int error = mlx5_.init_obj(&object, MLX5DV_OBJ_PD))
    return Refusal(error, "reading the number of a protection domain failed");
  domain_number_ = domain.pdn;
  if (const int error = mlx5_.query_eqn(context_, 0, &event_queue_))
    return Refusal(error, "asking for an event queue failed");
  return Status::Ok();
}

Mlx5Card::~Mlx5Card() {
  if (domain_) verbs_->dealloc_pd(domain_);
  if (context_) verbs_->close_device(context_);
}

Status Mlx5Card::Refusal(int error, const char* what, std::span<const uint8_t> answer) const {
  if (!answer.empty() && StatusIn(answer) != 0)
    return DescribeRefusal(error,
                           fmt::format("{} (the card says {:#x}, syndrome {:#x})", what,
                                       StatusIn(answer), SyndromeIn(answer)),
                           name_);
  return DescribeRefusal(error, what, name_);
}

unsigned Mlx5Card::AccessFor(CardOrdering ordering) const {
  const unsigned access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                          IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
  const bool relaxed = ordering == CardOrdering::kRelaxed && options_.relaxed_ordering;
  return relaxed ? access | IBV_ACCESS_RELAXED_ORDERING : access;
}

Result<std::unique_ptr<CardMemory>> Mlx5Card::Register(std::span<std::byte> memory, uint64_t begin,
                                                       CardOrdering ordering) {
  errno = 0;
  ibv_mr* const region =
      verbs_->reg_mr_iova2(domain_, memory.data(), memory.size(), begin, AccessFor(ordering));
  if (!region) return Refusal(errno, "registering memory failed");
  return std::unique_ptr<CardMemory>(std::make_unique<Mlx5Memory>(*verbs_, *region));
}

Result<std::unique_ptr<CardMemory>> Mlx5Card::RegisterGpu(std::span<std::byte> memory,
                                                          uint64_t begin, CardOrdering ordering,
                                                          int dmabuf, uint64_t offset) {
  if (dmabuf < 0) return Register(memory, begin, ordering);
  errno = 0;
  ibv_mr* const region = verbs_->reg_dmabuf_mr(domain_, offset, memory.size(), begin, dmabuf,
                                               static_cast<int>(AccessFor(ordering)));
  if (!region) return Refusal(errno, "registering a DMA-BUF failed");
  return std::unique_ptr<CardMemory>(std::make_unique<Mlx5Memory>(*verbs_, *region));
}

bool Mlx5Card::takes_dmabuf() const { return options_.dmabuf && verbs_->reg_dmabuf_mr != nullptr; }

std::vector<std::byte> Mlx5Card::QueueImage(size_t count, uint32_t depth) const {
  std::vector<std::byte> image(Mlx5QueueLayout(count, depth).bytes());
  Mlx5QueueLayout(count, depth).Fill(image.data());
  return image;
}

Result<std::unique_ptr<CardQueueMemory>> Mlx5Card::RegisterQueues(std::span<std::byte> memory,
                                                                  int dmabuf, uint64_t offset) {
  TUTTI_ASSIGN(std::unique_ptr<Mlx5QueueMemory> known,
               Mlx5QueueMemory::Register(*this, memory, dmabuf, offset));
  return std::unique_ptr<CardQueueMemory>(std::move(known));
}

Result<std::unique_ptr<CardQueues>> Mlx5Card::MakeQueues(size_t count, uint32_t depth,
                                                         std::unique_ptr<CardQueueMemory> memory) {
  std::unique_ptr<Mlx5QueueMemory> known(static_cast<Mlx5QueueMemory*>(memory.release()));
  if (known == nullptr) {
    TUTTI_ASSIGN(known, Mlx5QueueMemory::Allocate(*this, QueueImage(count, depth)));
  }
  TUTTI_ASSIGN(std::unique_ptr<Mlx5Queues> queues,
               Mlx5Queues::Create(*this, count, depth, std::move(known)));
  return std::unique_ptr<CardQueues>(std::move(queues));
}

Mlx5Route Mlx5Card::LocalRoute() const {
  const ibv_device_attr& device = port_.device->attributes();
  const int reads =
      std::clamp(std::min(device.max_qp_rd_atom, device.max_qp_init_rd_atom), 1, kMostReads);
  Mlx5Route route;
  route.port = port_.number;
  route.pkey_index = options_.pkey_index;
  route.gid_index = static_cast<uint8_t>(port_.gid.index);
  route.traffic_class = options_.one_sided_traffic_class;
  route.service_level = options_.service_level;
  route.timeout = options_.timeout;
  route.retry_count = options_.retry_count;
  route.log_reads = static_cast<uint8_t>(std::bit_width(static_cast<unsigned>(reads)) - 1);
  return route;
}

Result<Mlx5Route> Mlx5Card::RouteTo(const CardEnd& remote, uint32_t number) const {
  if (remote.ethernet != end_.ethernet)
    return InvalidUsage("{} does not reach a card on another kind of network", name_);
  Mlx5Route route = LocalRoute();
  route.remote = remote;
  route.remote_pair = number;
  route.mtu = std::min(end_.mtu, remote.mtu);
  // Ports of one fabric's subnet reach one another by LID; the first 8 bytes of a GID are the
  // subnet's prefix.
  route.global =
      port_.ethernet || !std::equal(remote.gid.begin(), remote.gid.begin() + 8, end_.gid.begin());
  if (port_.ethernet) {
    TUTTI_ASSIGN(route.remote_mac, MacOf(route));
  }
  return route;
}

// Asks the system for the Ethernet address of a GID, by an address handle.
Result<std::array<uint8_t, 6>> Mlx5Card::MacOf(const Mlx5Route& route) const {
  ibv_ah_attr address = {};
  address.port_num = port_.number;
  address.is_global = 1;
  std::memcpy(address.grh.dgid.raw, route.remote.gid.data(), route.remote.gid.size());
  address.grh.sgid_index = route.gid_index;
  address.grh.hop_limit = kHops;
  address.grh.traffic_class = route.traffic_class;
  errno = 0;
  ibv_ah* const handle = mlx5_.create_ah(domain_, &address);
  if (!handle) return Refusal(errno, "finding the Ethernet address of another card failed");
  mlx5dv_ah read = {};
  mlx5dv_obj object = {};
  object.ah.in = handle;
  object.ah.out = &read;
  const int error = mlx5_.init_obj(&object, MLX5DV_OBJ_AH);
  std::array<uint8_t, 6> mac = {};
  if (error == 0) std::memcpy(mac.data(), read.av->rmac, mac.size());
  mlx5_.destroy_ah(handle);
  if (error != 0) return Refusal(error, "reading the Ethernet address of another card failed");
  return mac;
}

}  // namespace tutti
