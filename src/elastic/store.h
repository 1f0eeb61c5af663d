#pragma once

// The elastic module lets a job go on while its ranks leave and come. A launcher (tools/run) holds
// a StoreServer; workers reach the store as StoreClients, by way of
// tutti/elastic_c.h. docs/elastic.md has the keys and the order in which workers use them. Ranks of
// several hosts that neither leave nor come meet by the same store (launch/meeting.h).
//
// The store keeps small values under keys, and gives each value a version from a single counter.
// Connectors prove the job's key before a byte is parsed, and all bytes are encrypted
// (bootstrap/auth.h). Values are bytes: nothing here, nor at the other end, runs or unpickles them.
//
// A connection carries one request at a time, each answered once; integers are little-endian.
//
//   request   size u32 | op u8 (1 set, 2 get)  newer_than u64  wait_ms u32  key (u8 and bytes) value
//   answer    size u32 | outcome u8 (0 done, 1 not yet, 2 refused)  version u64  value or sentence
//
// A get is answered when the key's version is above newer_than (a key that was never set has 0), or
// as "not yet" after wait_ms.
//
// Threads: a server lives on an event loop of its own, and its functions are called from any other
// thread; a client's calls may come from any thread and take turns, Interrupt excepted.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "bootstrap/auth.h"
#include "sys/fork.h"
#include "sys/tcp.h"

namespace tutti::elastic {

inline constexpr size_t kMaxKeyBytes = 200;
// The largest value is the list of a job's members: 60 bytes for each of 16,000 workers.
inline constexpr size_t kMaxValueBytes = 1u << 20;
// A job has a key for each worker that it ever started.
inline constexpr size_t kMaxKeys = 1u << 16;
// The most bytes that clients' keys and values take together. The list of members and 1 KB for each
// of 60,000 workers fit. The requests that have come in part and the answers that have not left
// take as many bytes again. Beyond the bound the connection with the most bytes is dropped.
// Connections that wait for the same version of a key share an answer.
inline constexpr size_t kMaxStoreBytes = 64u << 20;
// The most connections. The largest job has 16,000 workers with one connection each; a worker that
// comes back may leave a dead connection behind for a while.
inline constexpr size_t kMaxStoreConnections = 1u << 15;

// Returns the key for the store of the job with the given secret (config/secret.h). Nothing else
// uses this key.
Key StoreKey(std::string_view secret);

struct Entry {
  uint64_t version = 0;  // 0: never set
  std::string value;
};

class StoreServer {
 public:
  // Called on the store's thread after a client has set a key. Must not call the store.
  using OnSet = std::function<void(const std::string& key, const std::string& value)>;

  // Listens at `address`; its port 0 means any. `most_held` bounds the bytes of requests that have
  // come in part and of answers that have not left.
  static Result<std::unique_ptr<StoreServer>> Create(SocketAddress address, const Key& key,
                                                     OnSet on_set,
                                                     size_t most_held = kMaxStoreBytes);
  ~StoreServer();

  uint16_t port() const;
  void Set(const std::string& key, std::string value);
  void Erase(const std::string& key);
  Entry Get(const std::string& key) const;

 private:
  class State;
  StoreServer(std::unique_ptr<EventLoop> loop, std::shared_ptr<State> state, uint16_t port);
  std::unique_ptr<EventLoop> loop_;
  std::shared_ptr<State> state_;
  uint16_t port_;
};

// The child of a fork has a copy of the connection's seal, and would seal other bytes with the
// numbers that its parent uses. In a child Set and Get therefore fail with InvalidUsage, and
// Interrupt has no effect.
class StoreClient {
 public:
  // Tries the addresses in turn, over and over, until the server lets the client in.
  static Result<std::unique_ptr<StoreClient>> Connect(const std::vector<SocketAddress>& addresses,
                                                      const Key& key, const WaitLimits& limits);

  Result<uint64_t> Set(std::string_view key, std::string_view value);
  // Waits until the key's version is above `newer_than` and returns the entry. Its version is 0
  // when `wait_s` are over.
  Result<Entry> Get(std::string_view key, uint64_t newer_than, double wait_s);
  // Makes the call under way and all later ones fail. Any thread.
  void Interrupt();

 private:
  explicit StoreClient(SealedSocket socket) : fd_(socket.fd()), socket_(std::move(socket)) {}
  Result<Entry> Ask(uint8_t op, std::string_view key, uint64_t newer_than, uint32_t wait_ms,
                    std::string_view value);
  Result<Entry> Exchange(const Bytes& request, uint32_t wait_ms) TUTTI_REQUIRES(mutex_);

  bool IsTheParents() const { return forks_behind_ != ForksBehind(); }

  const uint32_t forks_behind_ = ForksBehind();
  Mutex mutex_;   // one request at a time
  const int fd_;  // of socket_; Interrupt needs no mutex
  SealedSocket socket_ TUTTI_GUARDED_BY(mutex_);
  // A request was cut off, so the next answer could belong to an earlier request.
  bool broken_ TUTTI_GUARDED_BY(mutex_) = false;
};

}  // namespace tutti::elastic
