#include "comm/process.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "backend/cuda/device_code.h"
#include "base/hash.h"
#include "sys/host.h"
#include "topology/detect.h"
#include "topology/machine_xml.h"
#include "topology/path_rules.h"

namespace tutti {
namespace {

// How many answers about the host are kept. A process asks about one or two sets of interfaces in
// its life; a program that changes its settings again and again must not make the map grow.
constexpr size_t kMostKnownHosts = 8;

// Returns a hash by which ranks of a host tell whether they see the same machine; never 0.
uint64_t HashOf(topology::Machine machine) {
  // The sentences about guesses may differ from process to process on the same machine.
  machine.guesses.clear();
  const uint64_t hash = Fnv1a::Of(topology::FormatMachineXml(machine));
  return hash == 0 ? 1 : hash;
}

}  // namespace

Process::Process()
    : unasked_roots_(AcceptLimit::ShareOf(static_cast<uint64_t>(sysconf(_SC_OPEN_MAX)))) {}

Result<std::unique_ptr<Process>> Process::Create(const Settings& settings) {
  if (settings.backend == "cuda") TUTTI_TRY(cuda::Driver::Find().status());
  std::unique_ptr<Process> process(new Process);
  TUTTI_ASSIGN(process->loop_, EventLoop::Create("tutti-boot"));
  TUTTI_ASSIGN(process->proxy_, Proxy::Create({.huge_pages = settings.huge_pages}));
  TUTTI_ASSIGN(process->fd_server_, FdServer::Create(*process->loop_));
  process->memory_ = std::make_unique<HostMemory>();
  process->board_ = observe::Board::Create(settings);
  process->picture_signal_ = observe::PictureSignal::Install(
      settings.observe_signal, *process->loop_,
      [board = process->board_.get()] { board->LogPicture("a signal asks"); });
  return process;
}

void Process::StartRas(const Settings& settings) {
  std::call_once(ras_started_, [&] { ras_ = ras::Server::Create(settings, *board_, waits_); });
}

void Process::DescribeMemory(PeerInfo& info) const {
  const std::string& name = fd_server_->name();
  std::memcpy(info.fd_server, name.data(), std::min(name.size(), sizeof(info.fd_server) - 1));
}

Result<std::shared_ptr<const Process::KnownHost>> Process::FindHost(
    const Settings& settings, const std::vector<topology::FoundPort>& ports, bool with_gpus) {
  std::string question = fmt::format("{}\n{}\n{}", with_gpus, settings.hostid, settings.topo_file);
  for (const topology::FoundPort& port : ports)
    question += fmt::format("\n{} {} {} {} {} {}", port.name, fmt::join(port.pci_paths, "+"),
                            port.speed_mbps, port.port, port.guid, port.gpu_memory);
  const MutexLock lock(host_mutex_);
  if (const auto known = hosts_.find(question); known != hosts_.end()) return known->second;
  if (processors_.empty()) processors_ = topology::FindProcessors();
  topology::DetectOptions options;
  options.cpus = processors_;
  options.host_hash = HostHash(settings.hostid);
  options.network = topology::NetworkChoice::kSockets;
  options.ports = ports;
  std::unique_ptr<topology::GpuSource> gpus;
  if (with_gpus) gpus = topology::MakeNvidiaSource();
  options.gpus = gpus.get();
  auto host = std::make_shared<KnownHost>();
  TUTTI_ASSIGN(host->machine, topology::KnownMachine(settings, topology::Detect(options)));
  host->hash = HashOf(host->machine);
  if (hosts_.size() >= kMostKnownHosts) hosts_.clear();
  hosts_[question] = host;
  return std::shared_ptr<const KnownHost>(std::move(host));
}

Result<int> Process::CurrentDevice(const Settings& settings) {
  if (settings.backend == "host") return -1;
  if (settings.backend != "cuda" && cuda::DeviceImages().empty()) return -1;
  const Result<const cuda::Driver*> found = cuda::Driver::Find();
  // The driver is too old. Going on as a rank of the host would be wrong, because the program's
  // buffers may be on its GPUs.
  if (!found.ok() && found.status().code() == Code::kInvalidUsage) return found.status();
  if (!found.ok() || (*found)->num_devices() == 0) {
    if (settings.backend != "cuda") return -1;
    TUTTI_TRY(found.status());
    return InvalidUsage("TUTTI_BACKEND asks for cuda, but this machine shows no GPU");
  }
  const cuda::Driver& driver = **found;
  // A thread that has not used CUDA yet has the runtime's default, device 0.
  cuda::Context context = nullptr;
  int device = 0;
  TUTTI_TRY(driver.Check(driver.ContextGetCurrent(&context), "asking for the current CUDA device"));
  if (context != nullptr)
    TUTTI_TRY(driver.Check(driver.ContextGetDevice(&device), "asking for the current CUDA device"));
  return device;
}

Result<const cuda::Device*> Process::OpenDevice(int ordinal) {
  TUTTI_ASSIGN(const cuda::Driver* const driver, cuda::Driver::Find());
  const MutexLock lock(devices_mutex_);
  std::unique_ptr<cuda::Device>& device = devices_[ordinal];
  if (!device) {
    TUTTI_ASSIGN(device, cuda::Device::Open(*driver, ordinal));
  }
  return device.get();
}

Result<UniqueId> Process::StartRoot(const Settings& settings, const SocketAddress& meeting) {
  return Root::Create(*loop_, settings, &unasked_roots_, meeting);
}

}  // namespace tutti
