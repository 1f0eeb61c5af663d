#include "bootstrap/root.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/log.h"
#include "bootstrap/auth.h"
#include "bootstrap/job_secret.h"
#include "bootstrap/root_server.h"
#include "sys/local_socket.h"
#include "sys/network_interface.h"

namespace tutti {
namespace {

Result<UniqueId> FixedId(const Settings& settings) {
  UniqueId id;
  Result<SocketAddress> root =
      ParseSocketAddress(settings.comm_id, FamilyNumber(settings.socket_family));
  if (!root.ok()) return std::move(root).status().Annotate("NCCL_COMM_ID cannot be used");
  id.root = std::move(root).value();
  if (id.root.port == 0) {
    return InvalidUsage(
        "NCCL_COMM_ID is \"{}\": the port must not be 0, because all ranks have to "
        "know it beforehand",
        settings.comm_id);
  }
  id.flags = settings.comm_key.empty() ? UniqueId::kNoKey : UniqueId::kKeyFromSetting;
  id.key = WithSecret(KeyFromText(fmt::format("fixed address, port {}", id.root.port)),
                      settings.comm_key, "fixed address");
  // The key is the same on every rank, under any name of the address.
  std::memcpy(&id.id, id.key.data(), sizeof(id.id));
  if (id.LocalName().empty()) {
    TUTTI_TRY(CheckMeetingOverTcp(settings.comm_key, settings.insecure,
                                  fmt::format("NCCL_COMM_ID={}", settings.comm_id)));
  }
  return id;
}

// Returns the address to listen at. A loopback address says nothing about other hosts, which may
// have come through a tunnel. A wrong address must not keep the root from its work.
Result<SocketAddress> ListenAddressNear(const Settings& settings, const SocketAddress& meeting) {
  if (meeting.valid() && !meeting.IsLoopback()) {
    Result<SocketAddress> near = ChooseListenAddress(BootstrapWish(settings, meeting));
    if (near.ok() && !near->IsLoopback()) return near;
  }
  return ChooseListenAddress(BootstrapWish(settings, {}));
}

}  // namespace

Result<UniqueId> Root::Create(EventLoop& loop, const Settings& settings, AcceptLimit* unasked,
                              const SocketAddress& meeting) {
  if (!settings.comm_id.empty()) return FixedId(settings);
  UniqueId id;
  TUTTI_ASSIGN(id.root, ListenAddressNear(settings, meeting));
  TUTTI_ASSIGN(UniqueFd listen_fd, Listen(id.root, settings.port_range));
  id.key = RandomKey();
  if (!settings.comm_key.empty()) id.flags = UniqueId::kSecret;
  id.id = RandomU64();
  const auto server = std::make_shared<RootServer>(loop, settings, unasked);
  TUTTI_TRY(server->Start(std::move(listen_fd), KeyOf(id, settings),
                          fmt::format("the root at {}", id.root.ToString())));
  TUTTI_INFO(kLogBootstrap, "root listens at {}", id.root.ToString());
  return id;
}

Key Root::KeyOf(const UniqueId& id, const Settings& settings) {
  return WithSecret(id.key, settings.comm_key, "bootstrap");
}

// Tries again while the port is in use, because the root of the job before may still be serving
// there.
Status Root::StartAt(EventLoop& loop, const UniqueId& id, const Settings& settings,
                     const WaitLimits& limits) {
  // An earlier job's root may still be telling latecomers the reason of its failure.
  const Deadline patience = Deadline::After(kLateArrivalsNs + 1'000'000'000);
  for (;;) {
    SocketAddress address = id.root;
    int error = 0;
    Result<UniqueFd> listen_fd =
        id.LocalName().empty() ? Listen(address, {}, &error) : ListenLocal(id.LocalName(), &error);
    if (listen_fd.ok()) {
      return std::make_shared<RootServer>(loop, settings)
          ->Start(std::move(listen_fd).value(), id.key,
                  fmt::format("the root at {}", address.ToString()));
    }
    if (error != EADDRINUSE || patience.Passed() || limits.Over()) {
      return std::move(listen_fd).status().Annotate(
          error == EADDRINUSE ? "rank 0 cannot serve the address of NCCL_COMM_ID (another process "
                                "says that it is rank 0, or another job has this address)"
                              : "rank 0 cannot serve the address of NCCL_COMM_ID");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace tutti
