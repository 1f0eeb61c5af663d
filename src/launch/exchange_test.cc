#include "launch/exchange.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "launch/handshake.h"
#include "launch/pmi1.h"

namespace tutti::launch {
namespace {

using testing::HasSubstr;

const char* NoVariables(const char*) { return nullptr; }

// A launcher's side of PMI-1 for any number of processes: one thread per connection over a socket
// pair.
class FakePmiServer {
 public:
  explicit FakePmiServer(int size, int max_value) : size_(size), max_value_(max_value) {}
  ~FakePmiServer() {
    for (auto& thread : threads_) thread.join();
  }

  int Connect() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    threads_.emplace_back([this, fd = UniqueFd(ends[0])] { Serve(fd.get()); });
    return ends[1];
  }
  int finalized() const { return finalized_; }
  size_t longest_value() const { return longest_value_; }

 private:
  static std::string Field(const std::string& line, const std::string& name) {
    const size_t at = line.find(" " + name + "=");
    if (at == std::string::npos) return "";
    const size_t start = at + name.size() + 2;
    return line.substr(start, line.find(' ', start) - start);
  }

  std::string Answer(const std::string& line) {
    const std::string command = line.substr(0, line.find(' '));
    std::unique_lock lock(mutex_);
    if (command == "cmd=init") return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0";
    if (command == "cmd=get_maxes") {
      return fmt::format("cmd=maxes kvsname_max=256 keylen_max=64 vallen_max={}", max_value_);
    }
    if (command == "cmd=get_my_kvsname") return "cmd=my_kvsname kvsname=kvs_1";
    if (command == "cmd=put") {
      values_[Field(line, "key")] = Field(line, "value");
      longest_value_ = std::max(longest_value_, Field(line, "value").size());
      return "cmd=put_result rc=0 msg=success";
    }
    if (command == "cmd=get") {
      const auto found = values_.find(Field(line, "key"));
      if (found == values_.end()) return "cmd=get_result rc=-1 msg=key_not_found value=unknown";
      return "cmd=get_result rc=0 msg=success value=" + found->second;
    }
    if (command == "cmd=barrier_in") {
      const int generation = generation_;
      if (++arrived_ == size_) {
        arrived_ = 0;
        ++generation_;
        barrier_.notify_all();
      }
      barrier_.wait(lock, [&] { return generation_ != generation; });
      return "cmd=barrier_out rc=0";
    }
    ++finalized_;
    return "cmd=finalize_ack";
  }

  void Serve(int fd) {
    std::string pending;
    char buffer[256];
    for (ssize_t got = 0; (got = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
      pending.append(buffer, static_cast<size_t>(got));
      for (size_t end = 0; (end = pending.find('\n')) != std::string::npos;) {
        const std::string answer = Answer(pending.substr(0, end)) + "\n";
        pending.erase(0, end + 1);
        // In two pieces, as a network may deliver it.
        send(fd, answer.data(), 5, MSG_NOSIGNAL);
        send(fd, answer.data() + 5, answer.size() - 5, MSG_NOSIGNAL);
      }
    }
  }

  const int size_;
  const int max_value_;
  std::mutex mutex_;
  std::condition_variable barrier_;
  std::map<std::string, std::string> values_;
  int arrived_ = 0;
  int generation_ = 0;
  int finalized_ = 0;
  size_t longest_value_ = 0;
  std::vector<std::thread> threads_;
};

std::string Payload(size_t bytes) {
  std::string payload(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<char>(i * 31 + 7);
  return payload;
}

std::vector<std::string> BroadcastOnAll(std::vector<LaunchInfo> infos, std::vector<Lookup> lookups,
                                        const std::string& payload) {
  std::vector<std::string> received(infos.size());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < infos.size(); ++i) {
    ranks.emplace_back([&, i] {
      auto result = BroadcastFromRankZero(infos[i], lookups[i], i == 0 ? payload : "ignored",
                                          Deadline::AfterSeconds(20));
      received[i] = result.ok() ? *result : std::string(result.status().message());
    });
  }
  for (auto& rank : ranks) rank.join();
  return received;
}

TEST(Exchange, OverPmiInPieces) {
  constexpr int kRanks = 3;
  const std::string payload = Payload(700);
  std::vector<std::string> received;
  {
    FakePmiServer server(kRanks, 128);
    std::vector<LaunchInfo> infos;
    std::vector<Lookup> lookups;
    for (int rank = 0; rank < kRanks; ++rank) {
      LaunchInfo info;
      info.rank = rank;
      info.size = kRanks;
      info.rendezvous = Rendezvous::kPmi;
      infos.push_back(info);
      lookups.push_back([fd = std::to_string(server.Connect())](const char* name) {
        return std::string_view(name) == "PMI_FD" ? fd.c_str() : nullptr;
      });
    }
    received = BroadcastOnAll(infos, lookups, payload);
    EXPECT_EQ(server.finalized(), kRanks);
    EXPECT_LT(server.longest_value(), 128u);
  }
  for (const std::string& text : received) EXPECT_EQ(text, payload);
}

TEST(Pmi1, RefusalIsASentence) {
  FakePmiServer server(1, 1024);
  auto client = Pmi1Client::Start(UniqueFd(server.Connect()), Deadline::AfterSeconds(10));
  ASSERT_TRUE(client.ok()) << client.status().message();
  const auto value = client->Get("absent", Deadline::AfterSeconds(10));
  ASSERT_FALSE(value.ok());
  EXPECT_THAT(std::string(value.status().message()), HasSubstr("key_not_found"));
}

TEST(Pmi1, SilentLauncherEndsAtTheDeadline) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd launcher(ends[0]);
  const auto client = Pmi1Client::Start(UniqueFd(ends[1]), Deadline::AfterSeconds(0.2));
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), Code::kTimeout);
}

TEST(Pmi1, EndlessLineIsRefused) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::thread launcher([fd = UniqueFd(ends[0])] {
    const std::string noise(1000, 'x');
    for (int i = 0; i < 100; ++i) send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
  });
  const auto client = Pmi1Client::Start(UniqueFd(ends[1]), Deadline::AfterSeconds(10));
  launcher.join();
  ASSERT_FALSE(client.ok());
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("without end"));
}

uint16_t FreePort() {
  uint16_t port = 0;
  auto listener = Listen({0}, &port);
  EXPECT_TRUE(listener.ok());
  return port;
}

std::vector<LaunchInfo> TcpInfos(int size, std::vector<uint16_t> ports) {
  std::vector<LaunchInfo> infos;
  for (int rank = 0; rank < size; ++rank) {
    LaunchInfo info;
    info.rank = rank;
    info.size = size;
    info.rendezvous = Rendezvous::kTcp;
    info.address = "127.0.0.1";
    info.ports = ports;
    info.job = "test";
    infos.push_back(info);
  }
  return infos;
}

TEST(Exchange, OverTcp) {
  const std::string payload = Payload(5000);
  const auto received =
      BroadcastOnAll(TcpInfos(5, {FreePort()}), std::vector<Lookup>(5, NoVariables), payload);
  for (const std::string& text : received) EXPECT_EQ(text, payload);
}

TEST(Exchange, OverTcpStepsOverATakenPort) {
  uint16_t taken = 0;
  auto listener = Listen({0}, &taken);  // Accepts into its backlog and never answers.
  ASSERT_TRUE(listener.ok());
  const std::string payload = Payload(10);
  const auto received = BroadcastOnAll(TcpInfos(2, {taken, FreePort()}),
                                       std::vector<Lookup>(2, NoVariables), payload);
  for (const std::string& text : received) EXPECT_EQ(text, payload);
}

TEST(Exchange, StrangersDoNotDisturb) {
  const uint16_t port = FreePort();
  std::vector<UniqueFd> strangers;
  std::thread noise([&] {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string garbage(500, 'G');
    for (int i = 0; i < 100; ++i) {
      UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
      if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
        if (i % 2) send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
        strangers.push_back(std::move(fd));  // Half open until the end.
      } else {
        usleep(1000);
      }
    }
  });
  const std::string payload = Payload(100);
  const auto received =
      BroadcastOnAll(TcpInfos(4, {port}), std::vector<Lookup>(4, NoVariables), payload);
  noise.join();
  for (const std::string& text : received) EXPECT_EQ(text, payload);
}

TEST(Exchange, AnotherSecretDoesNotGetIn) {
  auto infos = TcpInfos(2, {FreePort()});
  infos[1].secret = "wrong";
  std::string message;
  std::thread impostor([&] {
    const auto result =
        BroadcastFromRankZero(infos[1], NoVariables, "", Deadline::AfterSeconds(1.5));
    message = result.status().message();
  });
  const auto root = BroadcastFromRankZero(infos[0], NoVariables, "x", Deadline::AfterSeconds(1));
  impostor.join();
  ASSERT_FALSE(root.ok());
  EXPECT_THAT(std::string(root.status().message()), HasSubstr("rank 1 did not arrive"));
  EXPECT_THAT(message, HasSubstr("rank 0 could not be reached"));
}

TEST(Exchange, TwiceTheSameRankIsAnError) {
  auto infos = TcpInfos(3, {FreePort()});
  infos[2].rank = 1;
  std::vector<std::thread> twins;
  for (int i = 1; i <= 2; ++i) {
    twins.emplace_back([&, i] {
      (void)BroadcastFromRankZero(infos[static_cast<size_t>(i)], NoVariables, "",
                                  Deadline::AfterSeconds(10))
          .ok();
    });
  }
  const auto root = BroadcastFromRankZero(infos[0], NoVariables, "x", Deadline::AfterSeconds(10));
  for (auto& twin : twins) twin.join();
  ASSERT_FALSE(root.ok());
  EXPECT_THAT(std::string(root.status().message()),
              HasSubstr("two processes of this job say they are rank 1"));
}

TEST(Exchange, OneRankNeedsNobody) {
  const auto value =
      BroadcastFromRankZero(LaunchInfo{}, NoVariables, "alone", Deadline::AfterSeconds(1));
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(value.value(), "alone");
}

TEST(Hex, RoundTrip) {
  const std::string bytes = Payload(256);
  EXPECT_EQ(FromHex(ToHex(bytes)).value(), bytes);
  for (const char* bad : {"0", "0g", "g0", "aabbc"}) EXPECT_FALSE(FromHex(bad).ok()) << bad;
}

TEST(Messages, AnnouncedLengthIsBounded) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const UniqueFd a(ends[0]);
  const UniqueFd b(ends[1]);
  ASSERT_TRUE(SendMessage(a.get(), std::string(100, 'x'), Deadline::AfterSeconds(10)).ok());
  const auto message = ReceiveMessage(b.get(), 99, Deadline::AfterSeconds(10));
  ASSERT_FALSE(message.ok());
  EXPECT_THAT(std::string(message.status().message()), HasSubstr("100 bytes"));
}

}  // namespace
}  // namespace tutti::launch
