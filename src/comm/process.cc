#include "comm/process.h"

#include <algorithm>
#include <cstring>

namespace tutti {

Result<std::unique_ptr<Process>> Process::Create(const Settings& settings) {
  if (settings.backend == "cuda")
    return InvalidUsage("TUTTI_BACKEND asks for cuda, but this library was built for hosts only");
  std::unique_ptr<Process> process(new Process);
  TUTTI_ASSIGN(process->loop_, EventLoop::Create("tutti-boot"));
  TUTTI_ASSIGN(process->proxy_, Proxy::Create({.huge_pages = settings.huge_pages}));
  TUTTI_ASSIGN(process->fd_server_, FdServer::Create(*process->loop_));
  process->memory_ = std::make_unique<HostMemory>();
  return process;
}

void Process::DescribeMemory(PeerInfo& info) const {
  const std::string& name = fd_server_->name();
  std::memcpy(info.fd_server, name.data(), std::min(name.size(), sizeof(info.fd_server) - 1));
}

Result<UniqueId> Process::StartRoot(const Settings& settings) {
  return Root::Create(*loop_, settings);
}

}  // namespace tutti
