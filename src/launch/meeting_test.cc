#include "launch/meeting.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/job_secret.h"
#include "bootstrap/testing/sealed_pair.h"
#include "elastic/store.h"
#include "launch/handshake.h"
#include "launch/hex.h"
#include "launch/http_store.h"
#include "launch/listen.h"
#include "launch/messages.h"
#include "launch/testing/pmi1_launcher.h"
#include "sys/local_socket.h"

namespace tutti::launch {
namespace {

using ::testing::HasSubstr;

// Bound for events that must come about, however busy the machine is.
constexpr double kPatienceS = 60;

WaitLimits For(double seconds) { return {Deadline::AfterSeconds(seconds), nullptr}; }

// A secret of 32 bytes is not stretched, which would take time.
constexpr const char* kSecret = "a secret of 32 bytes for a test.";
constexpr const char* kOtherSecret = "the other secret, also 32 bytes.";

std::string Payload(size_t bytes) {
  std::string payload(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<char>(i * 31 + 7);
  return payload;
}

uint16_t FreePort() {
  uint16_t port = 0;
  auto listener = Listen({0}, &port);
  EXPECT_TRUE(listener.ok());
  return port;
}

// Ranks of one job, two on each machine.
std::vector<LaunchInfo> Ranks(int size, Rendezvous rendezvous, std::vector<Endpoint> endpoints) {
  std::vector<LaunchInfo> infos;
  for (int rank = 0; rank < size; ++rank) {
    LaunchInfo info;
    info.rank = rank;
    info.size = size;
    info.rendezvous = rendezvous;
    info.endpoints = endpoints;
    info.job = "test";
    info.secret = kSecret;
    info.secret_source = "/home/me/.tutti/key";
    info.machine = "machine" + std::to_string(rank / 2);
    infos.push_back(info);
  }
  return infos;
}

std::vector<LaunchInfo> TcpRanks(int size, const std::vector<uint16_t>& ports) {
  std::vector<Endpoint> endpoints;
  for (const uint16_t port : ports) endpoints.push_back({"127.0.0.1", port, ""});
  return Ranks(size, Rendezvous::kTcp, endpoints);
}

std::vector<LaunchInfo> LocalRanks(int size, const std::string& name) {
  return Ranks(size, Rendezvous::kLocal,
               {{"", 0, fmt::format("tutti-test-{}-{}", getpid(), name)}});
}

std::vector<Result<Meeting>> MeetOnAll(const std::vector<LaunchInfo>& infos,
                                       const std::string& payload, double seconds = kPatienceS) {
  std::vector<Result<Meeting>> meetings(infos.size(), Status());
  std::vector<std::thread> ranks;
  for (size_t i = 0; i < infos.size(); ++i) {
    ranks.emplace_back([&, i] {
      meetings[i] = Meet(infos[i], infos[i].rank == 0 ? payload : "ignored", For(seconds));
    });
  }
  for (auto& rank : ranks) rank.join();
  return meetings;
}

void ExpectMet(const std::vector<Result<Meeting>>& meetings, const std::string& payload) {
  for (const Result<Meeting>& meeting : meetings) {
    ASSERT_TRUE(meeting.ok()) << meeting.status().message();
    EXPECT_EQ(meeting.value().value, payload);
    ASSERT_EQ(meeting.value().places.size(), meetings.size());
    for (size_t rank = 0; rank < meetings.size(); ++rank) {
      EXPECT_EQ(meeting.value().places[rank].machine, static_cast<int>(rank / 2));
      EXPECT_EQ(meeting.value().places[rank].local_rank, static_cast<int>(rank % 2));
    }
  }
}

TEST(Meet, OneRankNeedsNobody) {
  const auto meeting = Meet(LaunchInfo{}, "alone", For(1));
  ASSERT_TRUE(meeting.ok());
  EXPECT_EQ(meeting.value().value, "alone");
  EXPECT_EQ(meeting.value().places, std::vector<Place>{Place{}});
}

TEST(Meet, OverTcp) {
  const std::string payload = Payload(5000);
  ExpectMet(MeetOnAll(TcpRanks(5, {FreePort()}), payload), payload);
}

TEST(Meet, OverASocketOfTheMachine) {
  const std::string payload = Payload(128);
  ExpectMet(MeetOnAll(LocalRanks(4, "local"), payload), payload);
}

// `tutti run` serves the store.
class LaunchersStore {
 public:
  LaunchersStore() {
    const auto address = ParseSocketAddress("127.0.0.1:0");
    server_ = elastic::StoreServer::Create(*address, elastic::StoreKey(kSecret),
                                           [](const std::string&, const std::string&) {});
    EXPECT_TRUE(server_.ok());
  }
  std::vector<LaunchInfo> Ranks(int size) const {
    // A name of the launcher's host that means nothing here does no harm.
    return launch::Ranks(size, Rendezvous::kStore,
                         {{"no.such.host.invalid", 1, ""}, {"127.0.0.1", (*server_)->port(), ""}});
  }

 private:
  Result<std::unique_ptr<elastic::StoreServer>> server_ = Status();
};

TEST(Meet, OverTheLaunchersStoreAgainAndAgain) {
  const LaunchersStore store;
  for (const char* payload : {"one", "two", "three"})
    ExpectMet(MeetOnAll(store.Ranks(4), payload), payload);
}

TEST(Meet, AtTheLaunchersStoreAWaitCanBeInterrupted) {
  const LaunchersStore store;
  std::atomic<bool> interrupted{false};
  Result<Meeting> meeting = Status();
  std::thread waiting([&] {
    meeting = Meet(store.Ranks(2)[1], "", {Deadline::AfterSeconds(kPatienceS), &interrupted});
  });
  interrupted.store(true);
  waiting.join();
  EXPECT_FALSE(meeting.ok());
}

// Horovod's launcher serves the store.
TEST(Meet, OverAStoreOfHorovods) {
  const auto address = ParseSocketAddress("127.0.0.1:0");
  ASSERT_TRUE(address.ok());
  const auto server = HttpStoreServer::Create(*address);
  ASSERT_TRUE(server.ok()) << server.status().message();
  auto infos = Ranks(4, Rendezvous::kHttp, {{"127.0.0.1", (*server)->port(), ""}});
  for (const bool secret : {false, true, true}) {
    for (LaunchInfo& info : infos) {
      info.secret = secret ? kSecret : "";
      info.insecure = !secret;
    }
    ExpectMet(MeetOnAll(infos, Payload(3000)), Payload(3000));
    EXPECT_EQ((*server)->size(), 0u);  // the invitation is gone
  }
  // A meeting that failed leaves nothing behind.
  ASSERT_FALSE(MeetOnAll({infos[0]}, "", 0.2)[0].ok());
  EXPECT_EQ((*server)->size(), 0u);
  ExpectMet(MeetOnAll(infos, "again"), "again");
}

TEST(Meet, AStoreOfHorovodsLetsNobodyInWithoutTheSecret) {
  const auto address = ParseSocketAddress("127.0.0.1:0");
  ASSERT_TRUE(address.ok());
  const auto server = HttpStoreServer::Create(*address);
  ASSERT_TRUE(server.ok()) << server.status().message();
  auto infos = Ranks(2, Rendezvous::kHttp, {{"127.0.0.1", (*server)->port(), ""}});
  infos[1].secret = kOtherSecret;
  for (const auto& meeting : MeetOnAll(infos, "", 0.5)) EXPECT_FALSE(meeting.ok());
}

TEST(Meet, OverPmiInPieces) {
  const std::string payload = Payload(700);
  std::vector<Result<Meeting>> meetings;
  constexpr int kRanks = 3;
  {
    FakePmiServer server(kRanks, 128);
    std::vector<LaunchInfo> infos = Ranks(kRanks, Rendezvous::kPmi, {});
    for (LaunchInfo& info : infos) info.pmi_fd = server.Connect();
    meetings = MeetOnAll(infos, payload);
    EXPECT_EQ(server.finalized(), kRanks);
    EXPECT_LT(server.longest_value(), 128u);
  }
  ExpectMet(meetings, payload);
}

// Whoever reads the launcher's connections has the invitation, and does not have the secret.
TEST(Meet, PmisInvitationLetsNobodyInWithoutTheSecret) {
  for (const char* other : {kOtherSecret, ""}) {
    FakePmiServer server(2, 128);
    std::vector<LaunchInfo> infos = Ranks(2, Rendezvous::kPmi, {});
    for (LaunchInfo& info : infos) info.pmi_fd = server.Connect();
    infos[1].secret = std::string_view(other);
    for (const auto& meeting : MeetOnAll(infos, "", 0.5)) EXPECT_FALSE(meeting.ok());
  }
}

TEST(Meet, StepsOverATakenPort) {
  uint16_t taken = 0;
  auto listener = Listen({0}, &taken);  // accepts into its backlog and never answers
  ASSERT_TRUE(listener.ok());
  const std::string payload = Payload(10);
  ExpectMet(MeetOnAll(TcpRanks(2, {taken, FreePort()}), payload), payload);
}

TEST(Meet, LaunchersNumbersComeToAll) {
  std::vector<LaunchInfo> infos = LocalRanks(4, "numbers");
  for (LaunchInfo& info : infos) {
    info.machine = "localhost";
    info.local_rank = info.rank % 2;
    info.local_size = 2;
  }
  ExpectMet(MeetOnAll(infos, "id"), "id");
}

TEST(Meet, ForeignConnectionsDoNotDisturb) {
  const uint16_t port = FreePort();
  std::atomic<bool> met{false};
  std::vector<UniqueFd> foreign;
  std::thread noise([&] {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const std::string garbage(500, 'G');
    while (foreign.size() < 100 && !met.load()) {
      UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
      if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
        std::this_thread::yield();
        continue;
      }
      // Every second connection says nothing at all, and all stay open until the end.
      if (foreign.size() % 2) send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
      foreign.push_back(std::move(fd));
    }
  });
  const std::string payload = Payload(100);
  const auto meetings = MeetOnAll(TcpRanks(4, {port}), payload);
  met.store(true);
  noise.join();
  ExpectMet(meetings, payload);
}

TEST(Meet, AnotherSecretDoesNotGetIn) {
  auto infos = TcpRanks(2, {FreePort()});
  infos[1].secret = kOtherSecret;
  infos[1].secret_source = "TUTTI_COMM_KEY";
  const auto meetings = MeetOnAll(infos, "x", 0.5);
  ASSERT_FALSE(meetings[0].ok());
  EXPECT_EQ(meetings[0].status().code(), Code::kTimeout);
  EXPECT_THAT(
      std::string(meetings[0].status().message()),
      HasSubstr("did not hold the job's secret (/home/me/.tutti/key here; compare `tutti key "
                "--fingerprint` on all hosts)"));
  EXPECT_THAT(std::string(meetings[1].status().message()),
              HasSubstr("may have another secret (TUTTI_COMM_KEY here; compare"));
  EXPECT_THAT(std::string(meetings[0].status().message()), HasSubstr("rank 1 did not arrive"));
  ASSERT_FALSE(meetings[1].ok());
  EXPECT_THAT(std::string(meetings[1].status().message()), HasSubstr("could not be reached"));
}

// A rank without a secret refuses to meet, and rank 0 hears nothing of the rank.
TEST(Meet, ARankWithoutTheSecretIsMissedWithAdvice) {
  auto infos = TcpRanks(2, {FreePort()});
  infos[1].secret.clear();
  infos[1].secret_source.clear();
  const auto meetings = MeetOnAll(infos, "x", 0.3);
  EXPECT_EQ(meetings[0].status().code(), Code::kTimeout);
  const std::string why(meetings[0].status().message());
  EXPECT_THAT(why,
              HasSubstr("rank 1 did not arrive in time; ranks with another secret, or without "
                        "a secret, do not arrive (/home/me/.tutti/key here; compare `tutti key "
                        "--fingerprint` on all hosts)"));
  EXPECT_EQ(meetings[1].status().code(), Code::kInvalidUsage);
}

TEST(Meet, OverTcpOnlyWithASecret) {
  const uint16_t port = FreePort();
  for (auto infos : {TcpRanks(2, {port}), Ranks(2, Rendezvous::kHttp, {{"127.0.0.1", port, ""}})}) {
    for (LaunchInfo& info : infos) info.secret.clear();
    const auto meetings = MeetOnAll(infos, "x");
    for (size_t rank = 0; rank < meetings.size(); ++rank) {
      ASSERT_EQ(meetings[rank].status().code(), Code::kInvalidUsage);
      const std::string why(meetings[rank].status().message());
      for (const char* part : {"TUTTI_COMM_KEY", "`tutti key`", "TUTTI_INSECURE=1"})
        EXPECT_THAT(why, HasSubstr(part));
      EXPECT_THAT(why, HasSubstr(fmt::format("rank {} of 2", rank)));
      EXPECT_THAT(why, HasSubstr(fmt::format("127.0.0.1 port {}", port)));
    }
  }
  auto infos = TcpRanks(2, {port});
  for (LaunchInfo& info : infos) {
    info.secret.clear();
    info.insecure = true;
  }
  ExpectMet(MeetOnAll(infos, "id"), "id");
}

TEST(Meet, OverASocketOfTheMachineWithoutASecret) {
  auto infos = LocalRanks(3, "open");
  for (LaunchInfo& info : infos) info.secret.clear();
  ExpectMet(MeetOnAll(infos, "id"), "id");
}

// Another user cannot hold up a job by its name.
TEST(Meet, OverTheNextNameOfTheMachine) {
  const auto infos = LocalRanks(3, "squatted");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string& name = infos[0].endpoints[0].local_name;
  name.copy(address.sun_path + 1, name.size());
  const UniqueFd squatter(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(squatter.get(), reinterpret_cast<const sockaddr*>(&address),
                 static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
            0);
  ExpectMet(MeetOnAll(infos, "id"), "id");
}

TEST(Meet, AnotherJobDoesNotGetIn) {
  auto infos = LocalRanks(2, "jobs");
  infos[1].job = "another";
  for (const auto& meeting : MeetOnAll(infos, "x", 0.3)) EXPECT_FALSE(meeting.ok());
}

TEST(Meet, RanksThatCameLearnWhyThereIsNoMeeting) {
  auto infos = LocalRanks(3, "missing");
  infos.pop_back();
  std::vector<Result<Meeting>> meetings(2, Status());
  // The other rank would wait for long.
  std::thread one([&] { meetings[1] = Meet(infos[1], "", For(kPatienceS)); });
  meetings[0] = Meet(infos[0], "x", For(0.5));
  one.join();
  for (const auto& meeting : meetings) {
    ASSERT_FALSE(meeting.ok());
    EXPECT_THAT(std::string(meeting.status().message()), HasSubstr("rank 2 did not arrive"));
  }
  // Only the rank that missed another names the likely cause.
  EXPECT_THAT(std::string(meetings[0].status().message()), HasSubstr("TUTTI_ADDR=HOST:PORT"));
}

TEST(Meet, TwiceTheSameRankIsAnError) {
  auto infos = TcpRanks(3, {FreePort()});
  infos[2].rank = 1;
  for (const auto& meeting : MeetOnAll(infos, "x")) {
    ASSERT_FALSE(meeting.ok());
    EXPECT_THAT(std::string(meeting.status().message()),
                HasSubstr("two processes of this job say they are rank 1"));
  }
}

TEST(Meet, AnInterruptEndsTheWait) {
  for (const int rank : {0, 1}) {
    std::atomic<bool> interrupted{false};
    const LaunchInfo info = LocalRanks(2, "interrupt")[static_cast<size_t>(rank)];
    Result<Meeting> meeting = Status();
    std::thread waiting([&] {
      meeting = Meet(info, "x", {Deadline::AfterSeconds(kPatienceS), &interrupted});
    });
    interrupted.store(true);
    waiting.join();
    ASSERT_FALSE(meeting.ok());
    EXPECT_THAT(std::string(meeting.status().message()), HasSubstr("aborted"));
  }
}

TEST(Meet, ARankMayTryAgain) {
  const auto infos = LocalRanks(2, "again");
  EXPECT_FALSE(Meet(infos[0], "x", For(0.01)).ok());
  const auto alone = Meet(infos[1], "x", For(0.01));
  EXPECT_THAT(std::string(alone.status().message()), HasSubstr("TUTTI_ADDR=HOST:PORT"));
  for (int i = 0; i < 3; ++i) ExpectMet(MeetOnAll(infos, "x"), "x");
}

TEST(Meet, ValuesAreBounded) {
  EXPECT_EQ(Meet(LaunchInfo{}, std::string(kMaxValueBytes + 1, 'x'), For(1)).status().code(),
            Code::kInvalidArgument);
}

TEST(Gathering, ARankThatTriesAgainTakesItsOwnPlace) {
  uint16_t port = 0;
  auto listener = Listen({0}, &port);
  ASSERT_TRUE(listener.ok());
  const Key key = RandomKey();
  auto gathering = Gathering::Start(std::move(listener).value(), key, {{0, 1}, {0, 2}});
  ASSERT_TRUE(gathering.ok());
  const auto connect = [&](uint32_t rank, uint64_t attempt) {
    const SocketAddress address = *ParseSocketAddress(fmt::format("127.0.0.1:{}", port));
    return ConnectAuthenticated(address, key,
                                {Purpose::kLaunch, EncodeClaimHello({{0, rank}, attempt, "note"})},
                                For(kPatienceS));
  };
  // The same process comes again, and another process comes after the first has gone.
  const auto first = connect(1, 7);
  const auto again = connect(1, 7);
  ASSERT_TRUE(first.ok() && again.ok());
  { const auto gone = connect(2, 8); }
  const auto successor = connect(2, 9);
  const Status gathered = (*gathering)->Await(For(kPatienceS));
  ASSERT_TRUE(gathered.ok()) << gathered.message();
  std::vector<Gathering::Peer> peers = (*gathering)->TakePeers();
  EXPECT_EQ(peers[1].note, "note");
  // A claim whose connection was of no use is awaited again.
  (*gathering)->ExpectAgain(0);
  EXPECT_EQ((*gathering)->Await(For(0)).code(), Code::kTimeout);
}

// Rank 0 may hold a connection that a rank gave up because its welcome came late.
TEST(Meet, ARankThatGaveItsConnectionUpIsAnsweredOverTheNext) {
  const auto infos = LocalRanks(2, "impatient");
  const Key key = WithSecret(KeyFromText("tutti launch|test|2"), kSecret, "launch");
  const std::string note = EncodeResidence({infos[1].machine, -1, -1});
  Result<Meeting> zero = Status();
  std::jthread rank_zero([&] { zero = Meet(infos[0], "value", For(kPatienceS)); });
  const auto connect = [&] {
    const Deadline deadline = Deadline::AfterSeconds(kPatienceS);
    Result<UniqueFd> fd = Status();
    do {
      fd = ConnectLocal(infos[0].endpoints[0].local_name);
    } while (!fd.ok() && !deadline.Passed());
    if (!fd.ok()) return SealedSocket();
    const Hello hello = {Purpose::kLaunch, EncodeClaimHello({{0, 1}, 7, note})};
    Result<SealedSocket> proven = AuthenticateAsConnector(std::move(fd).value(), key, hello,
                                                          For(kPatienceS), "authenticating");
    EXPECT_TRUE(proven.ok()) << proven.status().message();
    return proven.ok() ? std::move(proven).value() : SealedSocket();
  };
  {
    // Rank 0 has answered over the connection, and nobody replies.
    SealedSocket given_up = connect();
    EXPECT_TRUE(ReceiveMessage(given_up, kMaxAnswerBytes, For(kPatienceS)).ok());
  }
  SealedSocket next = connect();
  const auto message = ReceiveMessage(next, kMaxAnswerBytes, For(kPatienceS));
  ASSERT_TRUE(message.ok()) << message.status().message();
  const auto answer = ParseAnswer(*message, 2);
  ASSERT_TRUE(answer.ok()) << answer.status().message();
  EXPECT_EQ(answer->value, "value");
  const std::byte reply{1};
  EXPECT_TRUE(next.SendAll({&reply, 1}, For(kPatienceS)).ok());
  rank_zero.join();
  EXPECT_TRUE(zero.ok()) << zero.status().message();
}

TEST(Messages, AnnouncedLengthIsBounded) {
  auto [a, b] = testing::SealedPair();
  ASSERT_TRUE(SendMessage(a, std::string(100, 'x'), For(10)).ok());
  const auto message = ReceiveMessage(b, 99, For(10));
  ASSERT_FALSE(message.ok());
  EXPECT_THAT(std::string(message.status().message()), HasSubstr("100 bytes"));
}

TEST(Hex, RoundTrip) {
  const std::string bytes = Payload(256);
  EXPECT_EQ(FromHex(ToHex(bytes)).value(), bytes);
  for (const char* bad : {"0", "0g", "g0", "aabbc"}) EXPECT_FALSE(FromHex(bad).ok()) << bad;
}

}  // namespace
}  // namespace tutti::launch
