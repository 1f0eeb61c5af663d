#include "transport/net/socket/data_socket_config.h"

#include <algorithm>
#include <fstream>

#include "transport/net/socket/frame.h"

namespace tutti {
namespace {

// The virtual adapters of two clouds, whose networks hold a single TCP stream to a fraction of the
// link. The counts are from NCCL's documentation.
constexpr uint32_t kVendorAmazon = 0x1d0f;
constexpr uint32_t kVendorGoogle = 0x1ae0;

// One core moves some 20 to 30 Gb/s through one TCP stream (36 Gb/s over this project's loopback).
// Links up to this speed therefore need no second stream, and faster links get a thread for each
// stream.
constexpr int64_t kOneStreamMbps = 25'000;
constexpr int64_t kTwoStreamsMbps = 50'000;

struct Counts {
  int64_t threads = 1;
  int64_t sockets_per_thread = 1;
};

Counts CountsFor(const LinkFacts& link) {
  if (link.pci_vendor == kVendorAmazon) return {2, 8};
  if (link.pci_vendor == kVendorGoogle) return {4, 1};
  if (link.speed_mbps <= kOneStreamMbps) return {1, 1};
  if (link.speed_mbps <= kTwoStreamsMbps) return {2, 1};
  return {4, 1};
}

}  // namespace

LinkFacts ReadLinkFacts(const std::string& interface_name) {
  LinkFacts facts;
  const std::string directory = "/sys/class/net/" + interface_name;
  std::ifstream speed(directory + "/speed");
  // Virtual interfaces fail the read or say -1.
  if (int64_t value = 0; speed >> value && value > 0) facts.speed_mbps = value;
  std::ifstream vendor(directory + "/device/vendor");
  if (uint32_t value = 0; vendor >> std::hex >> value) facts.pci_vendor = value;
  return facts;
}

// Values of the user replace the values for the link one by one.
DataSocketConfig ChooseDataSockets(const Settings& settings, const LinkFacts& link) {
  Counts counts = CountsFor(link);
  if (settings.socket_nthreads > 0) counts.threads = settings.socket_nthreads;
  if (settings.nsocks_perthread > 0) counts.sockets_per_thread = settings.nsocks_perthread;
  const int64_t sockets =
      std::min<int64_t>(counts.threads * counts.sockets_per_thread, int64_t{kMaxDataSockets});
  const bool asked_for = settings.socket_nthreads > 0 || settings.nsocks_perthread > 0;
  if (sockets <= 1) return {0, 0, asked_for};
  // A single helper would only add a hand-off.
  const int64_t threads = counts.threads > 1 ? std::min(counts.threads, sockets) : 0;
  return {static_cast<int>(sockets), static_cast<int>(threads), asked_for};
}

// Several NICs carry data together only if each has a data socket.
size_t DataSocketsFor(const DataSocketConfig& config, size_t nics) {
  const auto sockets = static_cast<size_t>(config.sockets);
  return config.asked_for || nics < 2 ? sockets : std::max(sockets, nics);
}

}  // namespace tutti
