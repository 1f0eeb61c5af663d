#pragma once

// The two ends, for tests and benchmarks, of a proxy connection over this host's loopback.

#include <memory>
#include <string>

#include "bootstrap/auth.h"
#include "proxy/proxy.h"
#include "proxy/testing/polled_comm.h"
#include "transport/net/socket/socket_net.h"

namespace tutti {

// The proxy and the network of one side, as a process has them.
struct TestSide {
  std::unique_ptr<Proxy> proxy;
  std::unique_ptr<Net> net;

  static Result<TestSide> Create(const Key& key, const Settings& settings, bool ipv6) {
    TestSide side;
    TUTTI_ASSIGN(side.proxy, Proxy::Create({}));
    TUTTI_ASSIGN(const SocketAddress address, ParseSocketAddress(ipv6 ? "[::1]:0" : "127.0.0.1:0"));
    SocketNet::Options options;
    options.address = address;
    TUTTI_ASSIGN(side.net, SocketNet::Create(side.proxy->loop(), key, settings, options));
    return side;
  }
};

struct TestPair {
  TestSide sending;
  TestSide receiving;
  std::unique_ptr<ProxyConnection> send_connection;
  std::unique_ptr<ProxyConnection> recv_connection;

  static Result<std::unique_ptr<TestPair>> Create(size_t slot_bytes, const Settings& settings,
                                                  bool ipv6 = false, bool polled = false,
                                                  const LentBuffers* lent = nullptr) {
    auto pair = std::make_unique<TestPair>();
    const Key key = RandomKey();
    const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
    TUTTI_ASSIGN(pair->sending, TestSide::Create(key, settings, ipv6));
    TUTTI_ASSIGN(pair->receiving, TestSide::Create(key, settings, ipv6));
    TUTTI_ASSIGN(const std::unique_ptr<NetListener> listener, pair->receiving.net->Listen(0));
    TUTTI_ASSIGN(std::unique_ptr<NetSendComm> send_comm,
                 pair->sending.net->Connect(0, listener->handle(), limits));
    TUTTI_ASSIGN(std::unique_ptr<NetRecvComm> recv_comm, listener->Accept(limits));
    if (polled) {
      send_comm = std::make_unique<PolledSendComm>(std::move(send_comm));
      recv_comm = std::make_unique<PolledRecvComm>(std::move(recv_comm));
    }
    FifoPlace place = {slot_bytes};
    place.lent = lent;
    TUTTI_ASSIGN(pair->send_connection, pair->sending.proxy->CreateSendConnection(
                                            std::move(send_comm), place, "rank 1 on host b"));
    TUTTI_ASSIGN(pair->recv_connection,
                 pair->receiving.proxy->CreateRecvConnection(std::move(recv_comm), {slot_bytes},
                                                             "rank 0 on host a"));
    return pair;
  }
};

}  // namespace tutti
