// Prints the InfiniBand, RoCE and iWARP ports of this host that Tutti would use, and why it leaves
// out the others.

#include <fmt/format.h>

#include "transport/net/verbs/devices.h"

namespace {

tutti::Status Print() {
  TUTTI_ASSIGN(const tutti::Settings settings, tutti::ReadProcessSettings());
  TUTTI_ASSIGN(const tutti::VerbsLibrary library, tutti::LoadVerbsLibrary(settings.ib_library));
  TUTTI_ASSIGN(const tutti::VerbsPorts ports,
               tutti::FindVerbsPorts(std::make_shared<tutti::VerbsLibrary>(library), settings));
  for (const tutti::VerbsPort& port : ports.usable) {
    fmt::print("used: {} {} GID {} {} speed {} Mb/s MTU {} GUID {:016x}\n", port.Name(),
               port.kind(), port.gid.index, port.gid.ToString(), port.speed_mbps, 128 << port.mtu,
               port.device->guid());
  }
  for (const std::string& sentence : ports.left_out) fmt::print("left out: {}\n", sentence);
  return tutti::Status::Ok();
}

}  // namespace

int main() {
  const tutti::Status status = Print();
  if (status.ok()) return 0;
  fmt::print("failed: {}\n", status.message());
  return 1;
}
