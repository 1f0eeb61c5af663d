#pragma once

// For tests: a cable in user space. The cable passes bytes between its connections and a target.
// Tests can cut it, hold it, and make it damage bytes.

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "bootstrap/wire.h"
#include "sys/tcp.h"
#include "transport/testing/net_link.h"
#include "transport/testing/socket_net_pair.h"

namespace tutti {

class Cable {
 public:
  explicit Cable(const SocketAddress& target) : target_(target) {
    listen_fd_ = Listen(address_).value();
    thread_ = std::thread([this] { Run(); });
  }
  ~Cable() {
    stopping_.store(true);
    thread_.join();
  }
  const SocketAddress& address() const { return address_; }
  // Return how many connections have come, and how many bytes have passed.
  int accepted() const { return accepted_.load(); }
  size_t passed() const { return passed_.load(); }

  // Resets connections at both ends: all connections, or only the connection that `index` older
  // connections precede.
  void Cut(int index = kAll) {
    const int before = cuts_.load();
    cut_.store(index);
    while (cuts_.load() == before) std::this_thread::yield();
  }
  // While held, the kernel accepts connections but neither bytes nor resets pass.
  void Hold(bool hold) { hold_.store(hold); }
  // Waits until a connection has come that the cable has not served yet: while held, such a caller
  // gets no answer. Returns false when no connection came within `deadline`.
  [[nodiscard]] bool AwaitUnserved(Deadline deadline) const {
    pollfd readable = {listen_fd_.get(), POLLIN, 0};
    return ::poll(&readable, 1, deadline.RemainingMs(60'000)) == 1;
  }
  // Flips a bit of about one in `one_in` pieces of up to 64 KiB; 0: of none. The first kSpared
  // bytes of a connection, in which the connection proves itself, are left alone.
  void Damage(unsigned one_in) { damage_.store(one_in); }
  int damaged() const { return damaged_.load(); }
  // Flips a bit of the last message by which the next connection is authenticated.
  void DamageNextWelcome() { damage_welcome_.store(true); }
  // Returns how many connections pass bytes now.
  size_t open() const { return open_.load(); }

 private:
  static constexpr int kAll = -1;
  static constexpr int kNothing = -2;
  static constexpr size_t kSpared = 400;
  // A byte of the acceptor's last message (bootstrap/handshake.h).
  static constexpr size_t kInWelcome = 80;

  struct Way {
    std::vector<std::byte> waiting;
    size_t passed = 0;
    bool damages_welcome = false;
  };
  struct Connection {
    UniqueFd near;
    UniqueFd far;
    Way to_far;
    Way to_near;
  };

  static void Reset(UniqueFd& fd) {
    const linger at_once = {1, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    fd.Reset();
  }

  // Returns false when the connection has ended; reset_ then says whether by a reset.
  bool Pass(const UniqueFd& from, const UniqueFd& to, Way& way) {
    if (way.waiting.empty()) {
      std::array<std::byte, 65536> bytes;
      const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      reset_ = got < 0 && errno != EAGAIN;
      if (got <= 0) return got < 0 && !reset_;
      way.waiting.assign(bytes.begin(), bytes.begin() + got);
      const unsigned one_in = damage_.load();
      if (one_in != 0 && way.passed >= kSpared && random_() % one_in == 0) {
        way.waiting[random_() % way.waiting.size()] ^= static_cast<std::byte>(1u << random_() % 8);
        damaged_.fetch_add(1);
      }
      if (way.damages_welcome && way.passed + way.waiting.size() > kInWelcome) {
        way.waiting[kInWelcome - way.passed] ^= std::byte{1};
        way.damages_welcome = false;
        damaged_.fetch_add(1);
      }
      way.passed += way.waiting.size();
    }
    const ssize_t sent =
        ::send(to.get(), way.waiting.data(), way.waiting.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    reset_ = sent < 0 && errno != EAGAIN;
    if (sent < 0) return !reset_;
    way.waiting.erase(way.waiting.begin(), way.waiting.begin() + sent);
    passed_.fetch_add(static_cast<size_t>(sent));
    return true;
  }

  void Serve(int cut) {
    int index = 0;
    for (auto at = connections_.begin(); at != connections_.end(); ++index) {
      const bool cuts = cut == kAll || cut == index;
      if (cuts) {
        Reset(at->near);
        Reset(at->far);
      }
      at = cuts ? connections_.erase(at) : std::next(at);
    }
    open_.store(connections_.size());
    cuts_.fetch_add(1);
  }

  void Wait() {
    std::vector<pollfd> polls = {{listen_fd_.get(), POLLIN, 0}};
    const auto wait_for = [&](const UniqueFd& from, const UniqueFd& to, const Way& way) {
      polls.push_back(way.waiting.empty() ? pollfd{from.get(), POLLIN, 0}
                                          : pollfd{to.get(), POLLOUT, 0});
    };
    for (const Connection& each : connections_) {
      if (hold_.load()) continue;
      wait_for(each.near, each.far, each.to_far);
      wait_for(each.far, each.near, each.to_near);
    }
    if (hold_.load()) polls.clear();
    ::poll(polls.data(), polls.size(), 1);
  }

  void Run() {
    while (!stopping_.load()) {
      Wait();
      if (const int cut = cut_.exchange(kNothing); cut != kNothing) Serve(cut);
      if (hold_.load()) continue;
      std::erase_if(connections_, [&](Connection& each) {
        const bool passed =
            Pass(each.near, each.far, each.to_far) && Pass(each.far, each.near, each.to_near);
        // A reset at one end is a reset at the other end.
        if (!passed && reset_) {
          Reset(each.near);
          Reset(each.far);
        }
        return !passed;
      });
      open_.store(connections_.size());
      UniqueFd near = Accept(listen_fd_.get(), nullptr).value();
      if (!near.valid()) continue;
      accepted_.fetch_add(1);
      Result<UniqueFd> far = Connect(target_, {Deadline::AfterSeconds(20), nullptr});
      if (!far.ok()) continue;
      connections_.push_back({std::move(near), std::move(far).value(), {}, {}});
      connections_.back().to_near.damages_welcome = damage_welcome_.exchange(false);
      open_.store(connections_.size());
    }
  }

  const SocketAddress target_;
  SocketAddress address_ = ParseSocketAddress("127.0.0.1:0").value();
  UniqueFd listen_fd_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> cut_ = kNothing;
  std::atomic<bool> hold_ = false;
  std::atomic<unsigned> damage_ = 0;
  std::atomic<int> damaged_ = 0;
  std::atomic<bool> damage_welcome_ = false;
  std::atomic<size_t> open_ = 0;
  std::atomic<int> cuts_ = 0;
  std::atomic<int> accepted_ = 0;
  std::atomic<size_t> passed_ = 0;
  std::mt19937 random_{17};
  std::list<Connection> connections_;
  bool reset_ = false;
  std::thread thread_;
};

// Returns the place of address number `path` in a handle; the format is in listener.cc.
inline size_t PlaceInHandle(size_t path) { return path == 0 ? 8 : 43 + 24 * (path - 1); }

// Makes address number `path` of a handle lead through `cable`.
inline NetHandle Through(const Cable& cable, NetHandle handle, size_t path = 0) {
  WireWriter writer;
  writer.Address(cable.address());
  const Bytes bytes = std::move(writer).Take();
  std::memcpy(&handle[PlaceInHandle(path)], bytes.data(), bytes.size());
  return handle;
}
inline SocketAddress AddressIn(const NetHandle& handle, size_t path = 0) {
  return WireReader(std::span(handle).subspan(PlaceInHandle(path))).Address();
}

// The two ends of a connection that goes through a cable.
struct CabledLink {
  std::unique_ptr<NetPair> pair;
  std::unique_ptr<NetListener> listener;
  std::unique_ptr<Cable> cable;
  std::unique_ptr<NetSendComm> sender;
  std::unique_ptr<NetRecvComm> receiver;

  explicit CabledLink(const NetFactory& factory)
      : pair(factory.make()), listener(pair->receiving().Listen(0).value()) {
    cable = std::make_unique<Cable>(AddressIn(listener->handle()));
    sender = pair->sending()
                 .Connect(0, Through(*cable, listener->handle()), net_contract::Bound())
                 .value();
    receiver = listener->Accept(net_contract::Bound()).value();
  }
};

}  // namespace tutti
