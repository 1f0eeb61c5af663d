#pragma once

// For tests of devices that are made of several NICs or ports: NICs of the stand-in, and what was
// posted on each of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "config/settings.h"
#include "fake_verbs.h"
#include "transport/net/verbs/table.h"
#include "transport/testing/net_contract.h"

namespace tutti {

inline constexpr uint8_t k100Gbps = 32;
inline constexpr uint8_t k200Gbps = 64;

// Three NICs of a port each, and one with two; they are on no PCI bus.
inline void SetNics() {
  fakeverbs::DeviceSpec nics[4];
  const char* const names[] = {"fast", "slow", "spare", "dual"};
  for (int i = 0; i < 4; ++i) {
    nics[i].name = names[i];
    nics[i].ports = {{"10.77.0." + std::to_string(i + 1), true, i == 0 ? k200Gbps : k100Gbps}};
  }
  nics[3].ports.push_back({"10.77.0.5", true, k100Gbps});
  fakeverbs::SetDevices({nics, nics + 4});
}

// Settings of a rank that has these NICs, as one device.
inline Settings Has(const std::string& nics) {
  Settings settings;
  settings.ib_hca = "=" + nics;
  settings.net_force_merge = nics.find(',') == std::string::npos ? "" : nics;
  return settings;
}

// What the sender has and what the receiver has.
struct Ends {
  const char* name;
  const char* sender;
  const char* receiver;
};
inline constexpr Ends kEnds[] = {
    {"TwoNics", "fast,slow", "fast,slow"},
    {"TwoNicsToOne", "fast,slow", "spare"},
    {"OneNicToTwo", "spare", "fast,slow"},
    {"TwoPorts", "dual", "dual"},
    {"ThreeNicsToTwoPorts", "fast,slow,spare", "dual"},
};

// Has the stand-in show these NICs as long as it lives, and leaves nothing behind.
class ShownNics {
 public:
  ShownNics() {
    fakeverbs::Reset();
    SetNics();
  }
  ~ShownNics() {
    fakeverbs::Reset();
    EXPECT_EQ(fakeverbs::ObjectsAlive(), 0);
    fakeverbs::SetDevices({{}});
  }
};

class MergedVerbsTest : public ::testing::Test {
 protected:
  // Bytes of messages that were written since `from` by each device. Grants and records are left
  // out, which are short and whose lengths are multiples of 16; tests send none such.
  static std::map<std::string, size_t> Written(size_t from = 0) {
    std::map<std::string, size_t> bytes;
    const std::vector<fakeverbs::Call> calls = fakeverbs::Calls();
    for (size_t i = from; i < calls.size(); ++i) {
      const bool writes =
          calls[i].opcode == IBV_WR_RDMA_WRITE || calls[i].opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
      const bool tables = calls[i].bytes <= sizeof(GrantSlot) && calls[i].bytes % 16 == 0;
      if (calls[i].name == "post_send" && writes && !tables)
        bytes[calls[i].device] += calls[i].bytes;
    }
    return bytes;
  }
  // The same for bytes that were read.
  static std::map<std::string, size_t> Read(size_t from) {
    std::map<std::string, size_t> bytes;
    const std::vector<fakeverbs::Call> calls = fakeverbs::Calls();
    for (size_t i = from; i < calls.size(); ++i) {
      if (calls[i].opcode == IBV_WR_RDMA_READ && calls[i].name == "post_send")
        bytes[calls[i].device] += calls[i].bytes;
    }
    return bytes;
  }
  static size_t Now() { return fakeverbs::Calls().size(); }
  // Transfers odd messages until each of the devices has written some of them.
  static void TransferUntilAllWrite(net_contract::NetLink& link,
                                    const std::vector<std::string>& devices) {
    const Deadline deadline = net_contract::Bound().deadline;
    for (;;) {
      const size_t before = Now();
      net_contract::Transfer(link, {100'001, 1, 333'333});
      std::map<std::string, size_t> bytes = Written(before);
      if (std::all_of(devices.begin(), devices.end(),
                      [&](const std::string& device) { return bytes[device] > 0; })) {
        return;
      }
      ASSERT_FALSE(deadline.Passed()) << "not all of them write";
    }
  }

 private:
  const ShownNics nics_;
};

}  // namespace tutti
