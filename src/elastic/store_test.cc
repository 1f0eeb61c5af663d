#include "elastic/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <thread>

#include "elastic/store_wire.h"
#include "testing/threads.h"
#include "tutti/elastic_c.h"

namespace tutti::elastic {
namespace {

// A secret of 32 bytes is not stretched, which would take time.
constexpr const char* kSecret = "a secret of 32 bytes for a test.";

using ::testing::HasSubstr;

// Returns the descriptor of this process whose peer has the port: the server's end.
int EndWithPeer(uint16_t port) {
  for (int fd = 3; fd < 1024; ++fd) {
    sockaddr_in peer{};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) == 0 &&
        peer.sin_family == AF_INET && ntohs(peer.sin_port) == port)
      return fd;
  }
  return -1;
}

class Store : public ::testing::Test {
 protected:
  void SetUp() override { Start(kMaxStoreBytes); }

  void Start(size_t most_held) {
    server_.reset();
    address_ = *ParseSocketAddress("127.0.0.1:0");
    const auto on_set = [this](const std::string& key, const std::string& value) {
      const std::lock_guard lock(mutex_);
      seen_ += key + "=" + value + ";";
    };
    auto server = StoreServer::Create(address_, key_, on_set, most_held);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
    address_.port = server_->port();
  }

  std::unique_ptr<StoreClient> NewClient() {
    auto client = StoreClient::Connect({address_}, key_, {Deadline::AfterSeconds(10)});
    EXPECT_TRUE(client.ok()) << client.status().message();
    return std::move(client).value();
  }

  // Returns a connection that has proved the key and has sent no request. Either end has room for
  // little of a large answer in the kernel.
  SealedSocket Connected() {
    auto socket = ConnectAuthenticated(address_, key_, {Purpose::kElastic, {}},
                                       {Deadline::AfterSeconds(5), nullptr});
    EXPECT_TRUE(socket.ok()) << socket.status().message();
    sockaddr_in own{};
    socklen_t size = sizeof(own);
    getsockname(socket->fd(), reinterpret_cast<sockaddr*>(&own), &size);
    const int little = 128 << 10;
    setsockopt(socket->fd(), SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
    const int theirs = EndWithPeer(ntohs(own.sin_port));
    EXPECT_EQ(setsockopt(theirs, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
    return std::move(socket).value();
  }

  std::string seen() {
    const std::lock_guard lock(mutex_);
    return seen_;
  }

  const Key key_ = StoreKey(kSecret);
  SocketAddress address_;
  std::mutex mutex_;
  std::string seen_;
  std::unique_ptr<StoreServer> server_;
};

// Runs `wait` in a thread of its own, and returns when the thread sleeps there.
std::thread AsleepIn(std::function<void()> wait) {
  const auto who = std::make_shared<std::promise<pid_t>>();
  std::thread thread([who, wait = std::move(wait)] {
    who->set_value(tutti::testing::ThisThread());
    wait();
  });
  EXPECT_TRUE(tutti::testing::AwaitAsleep(who->get_future().get()));
  return thread;
}

TEST_F(Store, TakesABoundedNumberOfBytes) {
  const auto client = NewClient();
  const std::string value(kMaxValueBytes, 'v');
  size_t taken = 0;
  Result<uint64_t> set = client->Set("0", value);
  while (set.ok() && taken <= kMaxStoreBytes / kMaxValueBytes)
    set = client->Set(std::to_string(++taken), value);
  EXPECT_LT(taken, kMaxStoreBytes / kMaxValueBytes);
  EXPECT_THAT(set.status().message(), HasSubstr("takes no more than"));
  // A shorter value in the place of a longer value is taken, and makes room.
  EXPECT_TRUE(client->Set("0", "short").ok());
  EXPECT_TRUE(client->Set("last", value).ok());
  EXPECT_FALSE(client->Set("more", value).ok());
  server_->Erase("last");
  EXPECT_TRUE(client->Set("more", value).ok());
}

// Each request comes in a record whose header is not part of the request.
TEST_F(Store, TakesAnyNumberOfRequests) {
  constexpr size_t kMostHeld = 4096;
  Start(kMostHeld);
  const auto client = NewClient();
  for (size_t i = 0; i <= kMostHeld / RecordSeal::kMostHeaderBytes; ++i)
    ASSERT_TRUE(client->Set("k", "v").ok()) << i << " requests were taken";
  // Connections that end within a request give their bytes back.
  Bytes part = WithSize(Bytes(2000));
  part.resize(1000);
  for (int i = 0; i < 8; ++i) {
    SealedSocket stranger = Connected();
    ASSERT_TRUE(stranger.SendAll(part, {}).ok());
  }
  EXPECT_TRUE(client->Set("k", "v").ok());
}

// Connections that ask for a large value each and read nothing.
TEST_F(Store, HoldsABoundedNumberOfBytesOfAnswers) {
  constexpr size_t kAnswers = 4, kReaders = 8;
  Start(kAnswers * kMaxValueBytes + 1024);
  const std::string value(kMaxValueBytes, 'v');
  for (size_t i = 0; i < kReaders; ++i) server_->Set(std::to_string(i), value);
  for (const bool shared : {false, true}) {
    std::vector<SealedSocket> readers;
    for (size_t i = 0; i < kReaders; ++i) {
      readers.push_back(Connected());
      Request request;
      request.key = shared ? "0" : std::to_string(i);
      ASSERT_TRUE(readers.back().SendAll(WithSize(EncodeRequest(request)), {}).ok());
      pollfd begun{readers.back().fd(), POLLIN, 0};
      ASSERT_EQ(poll(&begun, 1, 10'000), 1);
    }
    EXPECT_TRUE(NewClient()->Set("k", "v").ok());
    size_t whole = 0;
    Bytes answer(4 + 9 + kMaxValueBytes);
    for (SealedSocket& reader : readers)
      whole += reader.RecvAll(answer, {Deadline::AfterSeconds(10), nullptr}).ok();
    EXPECT_EQ(whole, shared ? kReaders : kAnswers);
  }
}

TEST_F(Store, KeepsWhatIsSet) {
  const auto client = NewClient();
  const auto missing = client->Get("a", 0, 0);
  ASSERT_TRUE(missing.ok());
  EXPECT_EQ(missing->version, 0u);
  ASSERT_TRUE(client->Set("a", "one").ok());
  const auto set = client->Set("b", std::string("\0two", 4));
  ASSERT_TRUE(set.ok());
  const auto got = client->Get("b", 0, 0);
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->value, std::string("\0two", 4));
  EXPECT_EQ(got->version, *set);
  EXPECT_EQ(server_->Get("a").value, "one");
  server_->Erase("a");
  EXPECT_EQ(client->Get("a", 0, 0)->version, 0u);
  EXPECT_EQ(seen(), std::string("a=one;b=\0two;", 13));
}

TEST_F(Store, LargestValueTravels) {
  const auto client = NewClient();
  const std::string large(kMaxValueBytes, 'x');
  ASSERT_TRUE(client->Set("large", large).ok());
  EXPECT_EQ(client->Get("large", 0, 1)->value, large);
  EXPECT_EQ(client->Set("large", large + "x").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(client->Set("", "x").status().code(), Code::kInvalidArgument);
}

TEST_F(Store, GetWaitsForANewerVersion) {
  const auto reader = NewClient();
  const auto writer = NewClient();
  const uint64_t first = *writer->Set("k", "1");
  EXPECT_EQ(reader->Get("k", first, 0.05)->version, 0u);  // not yet
  Result<Entry> got = Entry{};
  std::thread waiting = AsleepIn([&] { got = reader->Get("k", first, 20); });
  ASSERT_TRUE(writer->Set("other", "").ok());
  ASSERT_TRUE(writer->Set("k", "2").ok());
  waiting.join();
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->value, "2");
}

TEST_F(Store, ManyWaitForOneKey) {
  constexpr int kReaders = 16;
  std::vector<std::string> got(kReaders);
  std::vector<std::thread> readers;
  for (int i = 0; i < kReaders; ++i) {
    const std::shared_ptr<StoreClient> client = NewClient();
    readers.push_back(AsleepIn(
        [&got, client, i] { got[static_cast<size_t>(i)] = client->Get("k", 0, 20)->value; }));
  }
  server_->Set("k", "now");
  for (auto& reader : readers) reader.join();
  EXPECT_THAT(got, ::testing::Each("now"));
}

TEST_F(Store, AnotherKeyStaysOutside) {
  const auto client = StoreClient::Connect({address_}, StoreKey("the other secret, also 32 bytes."),
                                           {Deadline::AfterSeconds(0.2)});
  ASSERT_FALSE(client.ok());
  EXPECT_EQ(client.status().code(), Code::kTimeout);
  EXPECT_THAT(std::string(client.status().message()), HasSubstr("127.0.0.1"));
}

TEST_F(Store, OutsidersAndNonsenseHaveNoEffect) {
  const auto client = NewClient();
  // Before and after the proof.
  Result<UniqueFd> outsider = Connect(address_, {Deadline::AfterSeconds(5), nullptr});
  ASSERT_TRUE(outsider.ok());
  const std::string noise(1000, '\xff');
  ASSERT_TRUE(SendAll(outsider->get(), std::as_bytes(std::span(noise)), {}).ok());
  for (const char* text : {"\xff\xff\xff\xff", "\1\0\0\0\7", "\3\0\0\0abc"}) {
    Result<SealedSocket> insider = ConnectAuthenticated(address_, key_, {Purpose::kElastic, {}},
                                                        {Deadline::AfterSeconds(5), nullptr});
    ASSERT_TRUE(insider.ok()) << insider.status().message();
    const Bytes bytes = [&] {
      WireWriter writer;
      writer.Raw(std::as_bytes(std::span(text, text[0] == '\xff' ? 4 : 4 + text[0])));
      return std::move(writer).Take();
    }();
    ASSERT_TRUE(insider->SendAll(bytes, {}).ok());
    std::array<std::byte, 1> end;
    EXPECT_FALSE(insider->RecvAll(end, {Deadline::AfterSeconds(10), nullptr}).ok());
  }
  EXPECT_TRUE(client->Set("still", "here").ok());
}

TEST_F(Store, InterruptEndsAWait) {
  const auto client = NewClient();
  Result<Entry> got = Entry{};
  std::thread waiting = AsleepIn([&] { got = client->Get("k", 0, 60); });
  client->Interrupt();
  waiting.join();
  EXPECT_FALSE(got.ok());
  EXPECT_FALSE(client->Set("k", "").ok());
}

TEST_F(Store, AChildDoesNotUseItsParentsConnection) {
  const auto client = NewClient();
  ASSERT_TRUE(client->Set("k", "parent").ok());
  const pid_t child = fork();
  if (child == 0) {
    const Status set = client->Set("k", "child").status();
    const Status get = client->Get("k", 0, 0).status();
    client->Interrupt();
    _exit(set.code() == Code::kInvalidUsage && get.code() == Code::kInvalidUsage &&
                  set.message().find("before this process was forked") != std::string_view::npos
              ? 0
              : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto entry = client->Get("k", 0, 0);
  ASSERT_TRUE(entry.ok()) << entry.status().message();
  EXPECT_EQ(entry->value, "parent");
}

TEST_F(Store, TheEndOfTheServerEndsAWait) {
  const auto client = NewClient();
  Result<Entry> got = Entry{};
  std::thread waiting = AsleepIn([&] { got = client->Get("k", 0, 60); });
  server_.reset();
  waiting.join();
  EXPECT_FALSE(got.ok());
}

TEST_F(Store, CInterface) {
  tuttiElastic_t elastic = nullptr;
  const std::string address = address_.ToString();
  ASSERT_EQ(
      tuttiElasticConnect(&elastic, ("no.such.host.invalid:1," + address).c_str(), kSecret, 10),
      ncclSuccess)
      << tuttiElasticLastError();
  ASSERT_EQ(tuttiElasticSet(elastic, "k", "value", 5), ncclSuccess);
  char value[16];
  size_t size = 0;
  uint64_t version = 0;
  ASSERT_EQ(tuttiElasticGet(elastic, "k", 0, 1, value, sizeof(value), &size, &version),
            ncclSuccess);
  EXPECT_EQ(std::string(value, size), "value");
  EXPECT_EQ(tuttiElasticGet(elastic, "k", 0, 1, value, 2, &size, &version), ncclInvalidArgument);
  EXPECT_EQ(size, 5u);
  EXPECT_EQ(tuttiElasticGet(elastic, "k", version, 0, value, 2, &size, &version), ncclSuccess);
  EXPECT_EQ(version, 0u);
  EXPECT_EQ(tuttiElasticClose(elastic), ncclSuccess);
  EXPECT_EQ(tuttiElasticConnect(&elastic, "nonsense", kSecret, 1), ncclInvalidArgument);
  EXPECT_THAT(tuttiElasticLastError(), HasSubstr("nonsense"));
  // Everybody has the empty secret.
  EXPECT_EQ(tuttiElasticConnect(&elastic, address.c_str(), "", 10), ncclInvalidUsage);
  EXPECT_THAT(tuttiElasticLastError(), HasSubstr("TUTTI_COMM_KEY"));
}

}  // namespace
}  // namespace tutti::elastic
