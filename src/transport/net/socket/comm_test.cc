// The two ends of a connection over socket pairs: requests, grants, and their defence against
// hostile bytes.

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include "transport/net/socket/recv_comm.h"
#include "transport/net/socket/send_comm.h"
#include "transport/net/socket/stripe.h"
#include "transport/testing/socket_fuzz_targets.h"

namespace tutti {
namespace {

struct Joined {
  std::shared_ptr<SocketHelpers> helpers;
  std::unique_ptr<SocketSendComm> sender;
  std::unique_ptr<SocketRecvComm> receiver;
};

std::unique_ptr<SocketSendComm> MakeSender(SocketSet sockets,
                                           std::shared_ptr<SocketHelpers> helpers) {
  return std::make_unique<SocketSendComm>(
      SocketChannel::Create(std::move(sockets), SocketDirection::kSend, helpers).value());
}
std::unique_ptr<SocketRecvComm> MakeReceiver(SocketSet sockets,
                                             std::shared_ptr<SocketHelpers> helpers) {
  return std::make_unique<SocketRecvComm>(
      SocketChannel::Create(std::move(sockets), SocketDirection::kReceive, helpers).value());
}

Joined Join(int sockets, int threads) {
  Joined joined;
  joined.helpers = SocketHelpers::Create(threads).value();
  SocketSet a;
  SocketSet b;
  a.peer = "b";
  b.peer = "a";
  std::tie(a.control, b.control) = fuzz::JoinedSockets();
  for (int i = 0; i < sockets; ++i) {
    auto [one, other] = fuzz::JoinedSockets();
    a.data.push_back(std::move(one));
    b.data.push_back(std::move(other));
  }
  joined.sender = MakeSender(std::move(a), joined.helpers);
  joined.receiver = MakeReceiver(std::move(b), joined.helpers);
  return joined;
}

// A receiver whose other end writes raw bytes.
struct Attacked {
  std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
  UniqueFd attacker;
  std::unique_ptr<SocketRecvComm> receiver;
  std::vector<std::byte> buffer = std::vector<std::byte>(4096);

  Attacked() {
    SocketSet sockets;
    sockets.peer = "attacker";
    std::tie(sockets.control, attacker) = fuzz::JoinedSockets();
    receiver = MakeReceiver(std::move(sockets), helpers);
  }
  void Write(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(attacker.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  void Write(const Frame& frame) {
    std::array<std::byte, kFrameBytes> bytes;
    EncodeFrame(frame, bytes);
    Write(bytes);
  }
  std::string Failure() {
    for (int i = 0; i < 10; ++i) {
      const Result<bool> moved = receiver->Progress();
      if (!moved.ok()) return std::string(moved.status().message());
    }
    return "";
  }
};

void Fill(std::vector<std::byte>& data, uint64_t number) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(number + i * 3);
}

// Sends `sizes` in order, as many at once as the comm takes, and checks the received messages.
void Transfer(Joined& joined, const std::vector<size_t>& sizes) {
  struct Flying {
    NetRequest* request;
    std::vector<std::byte> data;
  };
  std::deque<Flying> sending;
  std::deque<Flying> receiving;
  size_t sent = 0;
  size_t posted = 0;
  size_t received = 0;
  const Deadline deadline = Deadline::AfterSeconds(60);
  while (received < sizes.size() && !deadline.Passed()) {
    if (posted < sizes.size() && posted - received < kNetWindow) {
      std::vector<std::byte> buffer(1 << 20);
      NetRequest* request = *fuzz::ReceiveOne(*joined.receiver, buffer.data(), buffer.size());
      if (request) {
        receiving.push_back({request, std::move(buffer)});
        ++posted;
      }
    }
    if (sent < sizes.size() && sending.size() < kNetWindow) {
      std::vector<std::byte> data(sizes[sent]);
      Fill(data, sent);
      Result<NetRequest*> request =
          joined.sender->Isend({data.data(), data.size(), 0, static_cast<uint32_t>(sent) * 77});
      ASSERT_TRUE(request.ok()) << request.status().message();
      if (*request) {
        sending.push_back({*request, std::move(data)});
        ++sent;
      }
    }
    ASSERT_TRUE(joined.sender->Progress().ok());
    const Result<bool> moved = joined.receiver->Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    while (!sending.empty() && *joined.sender->Test(*sending.front().request)) sending.pop_front();
    while (!receiving.empty() && *joined.receiver->Test(*receiving.front().request)) {
      const NetRequest& request = *receiving.front().request;
      ASSERT_EQ(request.received[0].bytes, sizes[received]);
      ASSERT_EQ(request.received[0].op_tag, static_cast<uint32_t>(received) * 77);
      std::vector<std::byte> expected(sizes[received]);
      Fill(expected, received);
      if (!expected.empty()) {
        ASSERT_EQ(std::memcmp(expected.data(), receiving.front().data.data(), expected.size()), 0)
            << "chunk " << received;
      }
      receiving.pop_front();
      ++received;
    }
  }
  EXPECT_EQ(received, sizes.size());
}

std::vector<size_t> MixedSizes(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<size_t> sizes(count);
  for (size_t& bytes : sizes) {
    bytes = random() % 3 == 0 ? random() % ((1 << 20) + 1) : random() % 300;
  }
  return sizes;
}

TEST(SocketCommTest, CarriesMixedChunksOverAnyNumberOfDataSocketsAndThreads) {
  for (const auto& [sockets, threads] : {std::pair(0, 0), {1, 0}, {2, 0}, {5, 0}, {2, 2}, {7, 3}}) {
    SCOPED_TRACE(fmt::format("{} data sockets, {} threads", sockets, threads));
    Joined joined = Join(sockets, threads);
    Transfer(joined, MixedSizes(static_cast<unsigned>(sockets * 10 + threads), 100));
  }
}

// After two messages of one length the receiver reads the next message as if it had this length
// too. Bytes that are read into the buffer beyond the message's end belong to later messages.
TEST(SocketCommTest, MessagesOfAnyLengthFollowTwoOfOneLength) {
  for (const size_t length : {4096, 16384, 65536, 70000}) {
    for (const size_t next :
         {size_t{0}, size_t{1}, size_t{100}, length - 1, length, length + 1, length + 9000}) {
      SCOPED_TRACE(fmt::format("{} bytes after {}", next, length));
      Attacked attacked;
      const std::array<size_t, 6> sizes = {length, length, next, 700, 0, length};
      std::array<std::vector<std::byte>, 6> buffers;
      std::array<NetRequest*, 6> requests = {};
      for (size_t i = 0; i < sizes.size(); ++i) {
        buffers[i].resize(1 << 20);
        requests[i] = *fuzz::ReceiveOne(*attacked.receiver, buffers[i].data(), buffers[i].size());
      }
      // The first two messages have come before the rest comes, all at once.
      size_t sent = 0;
      for (const size_t end : {size_t{2}, sizes.size()}) {
        std::vector<std::byte> stream;
        for (size_t i = sent; i < end; ++i) {
          std::array<std::byte, kFrameBytes> frame;
          EncodeFrame({FrameType::kData, 0, 7, static_cast<uint32_t>(sizes[i]), i}, frame);
          stream.insert(stream.end(), frame.begin(), frame.end());
          std::vector<std::byte> data(sizes[i]);
          Fill(data, i);
          stream.insert(stream.end(), data.begin(), data.end());
        }
        ASSERT_NO_FATAL_FAILURE(attacked.Write(stream));
        for (size_t i = sent; i < end; ++i) {
          bool done = false;
          for (int tries = 0; !done && tries < 100; ++tries) {
            ASSERT_TRUE(attacked.receiver->Progress().ok());
            done = *attacked.receiver->Test(*requests[i]);
          }
          ASSERT_TRUE(done) << i;
          ASSERT_EQ(requests[i]->received[0].bytes, sizes[i]);
          std::vector<std::byte> data(sizes[i]);
          Fill(data, i);
          buffers[i].resize(sizes[i]);
          ASSERT_EQ(buffers[i], data) << i;
        }
        sent = end;
      }
    }
  }
}

TEST(SocketCommTest, SendsNoMoreThanIsGranted) {
  constexpr size_t kLong = kCreditBytes / 3;  // three messages use the credit up
  for (const auto& [bytes, on_credit] : {std::pair(size_t{16}, kCreditMessages), {kLong + 1, 3}}) {
    SCOPED_TRACE(bytes);
    Joined joined = Join(0, 0);
    const std::vector<std::byte> data(bytes);
    // A window of short messages, and then as many long messages as the sockets hold.
    const auto send_all = [&] {
      uint64_t sent = 0;
      while (NetRequest* const request =
                 *joined.sender->Isend({data.data(), sent < kNetWindow ? 16 : data.size()})) {
        EXPECT_TRUE(joined.sender->Progress().ok());
        EXPECT_TRUE(*joined.sender->Test(*request));
        ++sent;
      }
      return sent;
    };
    EXPECT_EQ(send_all(), kNetWindow + on_credit);
    // The first use of a slot grants nothing. Its second posting does, when its message has come.
    std::vector<std::byte> buffer(bytes);
    std::vector<NetRequest*> requests;
    const auto receive_window = [&] {
      for (uint64_t i = 0; i < kNetWindow; ++i)
        requests.push_back(*fuzz::ReceiveOne(*joined.receiver, buffer.data(), buffer.size()));
      for (int i = 0; i < 100; ++i) EXPECT_TRUE(joined.receiver->Progress().ok());
    };
    receive_window();
    EXPECT_EQ(send_all(), 0u);
    for (NetRequest* const request : requests) EXPECT_TRUE(*joined.receiver->Test(*request));
    uint64_t granted = 0;
    for (uint64_t came = 0; granted == 0 && came <= kCreditMessages; came += kNetWindow) {
      requests.clear();
      receive_window();
      granted = send_all();
      for (NetRequest* const request : requests)
        EXPECT_TRUE(granted > 0 || *joined.receiver->Test(*request));
    }
    EXPECT_GE(granted, kNetWindow);
  }
}

TEST(SocketCommTest, TellsThatThePeerClosed) {
  Joined joined = Join(0, 0);
  std::vector<std::byte> buffer(16);
  ASSERT_NE(*fuzz::ReceiveOne(*joined.receiver, buffer.data(), buffer.size()), nullptr);
  joined.sender.reset();
  const Result<bool> moved = joined.receiver->Progress();
  ASSERT_FALSE(moved.ok());
  EXPECT_EQ(moved.status().code(), Code::kRemoteError);
  EXPECT_FALSE(
      // the connection stays broken
      fuzz::ReceiveOne(*joined.receiver, buffer.data(), buffer.size()).ok());
}

TEST(SocketCommTest, TellsThatADataSocketBroke) {
  for (const int threads : {0, 2}) {
    const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(threads).value();
    SocketSet sockets;
    UniqueFd control;
    std::vector<UniqueFd> far_ends(2);
    std::tie(sockets.control, control) = fuzz::JoinedSockets();
    sockets.data.resize(2);
    for (size_t i : {0u, 1u}) std::tie(sockets.data[i], far_ends[i]) = fuzz::JoinedSockets();
    const auto receiver = MakeReceiver(std::move(sockets), helpers);
    std::vector<std::byte> buffer(65536);
    ASSERT_NE(*fuzz::ReceiveOne(*receiver, buffer.data(), buffer.size()), nullptr);
    std::array<std::byte, kFrameBytes> frame;
    EncodeFrame({FrameType::kStriped, 2, 0, 65536, 0}, frame);
    ASSERT_EQ(::send(control.get(), frame.data(), frame.size(), 0), ssize_t{kFrameBytes});
    ASSERT_TRUE(receiver->Progress().ok());
    far_ends[1].Reset();  // the control socket stays
    Status status;
    for (const Deadline deadline = Deadline::AfterSeconds(20); status.ok() && !deadline.Passed();) {
      status = receiver->Progress().status();
    }
    EXPECT_EQ(status.code(), Code::kRemoteError) << threads << " threads";
  }
}

TEST(SocketCommTest, HostileFramesBreakTheConnectionWithASentence) {
  const auto failure = [](const Frame& frame) {
    Attacked attacked;
    EXPECT_TRUE(
        fuzz::ReceiveOne(*attacked.receiver, attacked.buffer.data(), attacked.buffer.size()).ok());
    attacked.Write(frame);
    return attacked.Failure();
  };
  EXPECT_EQ(failure({FrameType::kData, 0, 0, 4097, 0}),
            "the sender announced a message of 4097 bytes for a buffer of 4096");
  EXPECT_EQ(failure({FrameType::kData, 0, 0, 1, 1}), "the sender announced message 1 instead of 0");
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 0, 9}),
            "the sender granted buffers against the direction");
  EXPECT_EQ(failure({FrameType::kStriped, 2, 0, 4000, 0}),
            "the sender put a message of 4000 bytes on 2 of 0 data sockets");
  EXPECT_EQ(failure({FrameType::kGroup, 1, 0, 0, 0}),
            "the sender granted buffers against the direction");
  EXPECT_EQ(failure({FrameType::kData, 0, 0, 10, 0, 0x31}),
            "the sender announced a message with tag 0x31, which the group in turn does not want");
  EXPECT_EQ(failure({FrameType::kData, 0, 0, 10, 0}), "");
}

TEST(SocketCommTest, ReadsNothingBeforeABufferIsPosted) {
  Attacked attacked;
  attacked.Write(std::vector<std::byte>(100, std::byte{0xff}));
  EXPECT_EQ(attacked.Failure(), "");
  ASSERT_TRUE(
      fuzz::ReceiveOne(*attacked.receiver, attacked.buffer.data(), attacked.buffer.size()).ok());
  EXPECT_NE(attacked.Failure(), "");
}

TEST(SocketCommTest, HostileGroupsBreakTheConnectionWithASentence) {
  const auto failure = [](const std::vector<std::pair<Frame, GroupTags>>& groups) -> std::string {
    const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
    auto [ours, theirs] = fuzz::JoinedSockets();
    SocketSet sockets;
    sockets.control = std::move(ours);
    const auto sender = MakeSender(std::move(sockets), helpers);
    for (const auto& [frame, tags] : groups) {
      std::array<std::byte, kFrameBytes + kGroupTagsBytes> bytes;
      EncodeFrame(frame, std::span(bytes).first<kFrameBytes>());
      EncodeGroupTags(tags, std::span(bytes).last<kGroupTagsBytes>());
      EXPECT_EQ(::send(theirs.get(), bytes.data(), bytes.size(), 0), ssize_t{bytes.size()});
    }
    std::byte data = {};
    const Result<NetRequest*> next = sender->Isend({&data, 1, 7});
    return next.ok() ? (*next ? "granted" : "none") : std::string(next.status().message());
  };
  const auto group = [](uint64_t count, uint8_t number = 2) {
    return Frame{FrameType::kGroup, number, 0, 0, count};
  };
  EXPECT_EQ(failure({{group(0), {7, 8}}}), "granted");
  EXPECT_EQ(failure({{group(0), {8, 9}}, {group(1), {7, 8}}}), "none");
  EXPECT_EQ(failure({{group(1), {7, 8}}}),
            "the receiver granted group 1, but 0 groups were filled and 0 granted");
  EXPECT_EQ(failure({{group(0), {7, 7}}}), "a group of 2 buffers has 0x7 for the tag of buffer 1");
  EXPECT_EQ(failure({{group(0), {7}}}), "a group of 2 buffers has 0x0 for the tag of buffer 1");
  EXPECT_EQ(failure({{group(0), {7, 8, 9}}}),
            "a group of 2 buffers has 0x9 for the tag of buffer 2");
  EXPECT_EQ(failure({{group(0, 9), {7, 8}}}), "a frame of type 4 has the number 9");
  std::vector<std::pair<Frame, GroupTags>> nine;
  for (uint64_t i = 0; i <= kNetWindow; ++i) nine.push_back({group(i), {1, 2}});
  EXPECT_EQ(failure(nine), "none");  // the ninth is read when there is room for it
}

// Whole streams with seeded damage: a small version of the fuzzer.
TEST(SocketCommTest, DamagedStreamsAreDeliveredOrRefused) {
  for (unsigned seed = 0; seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const int sockets = static_cast<int>(random() % 3);
    std::vector<std::byte> stream;
    for (uint64_t chunk = 0; chunk < 6; ++chunk) {
      const auto bytes = static_cast<uint32_t>(random() % 6 == 0 ? 65536 : random() % 600);
      const int used = Striping::SocketsFor(bytes, sockets);
      std::array<std::byte, kFrameBytes> frame;
      EncodeFrame({used > 0 ? FrameType::kStriped : FrameType::kData, static_cast<uint8_t>(used),
                   static_cast<uint32_t>(chunk), bytes, chunk},
                  frame);
      stream.insert(stream.end(), frame.begin(), frame.end());
      stream.resize(stream.size() + bytes, std::byte{1});
    }
    for (unsigned flips = random() % 4; flips > 0; --flips) {
      stream[random() % stream.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    fuzz::FeedReceiver(stream, random() % 4000 + 1, sockets);
    std::vector<std::byte> grants;
    for (uint64_t count = 8; count < 80; count += random() % 10) {
      std::array<std::byte, kFrameBytes> frame;
      EncodeFrame({FrameType::kGrant, 0, 0, 0, count}, frame);
      grants.insert(grants.end(), frame.begin(), frame.end());
    }
    if (seed % 2 != 0) grants[random() % grants.size()] ^= std::byte{4};
    fuzz::FeedSender(grants, random() % 60 + 1);
  }
}

// Finds no new socket, but lets both ends behave as if a new socket could come.
class NoNewSocket final : public SocketResumer {
 public:
  void Begin(int) override {}
  Result<std::optional<Sockets>> Step() override { return std::optional<Sockets>(); }
};

// Returns the sockets of a connection that has only `control`, and never gets another socket.
SocketSet Over(UniqueFd control) {
  SocketSet sockets;
  sockets.control = std::move(control);
  sockets.resumer = std::make_unique<NoNewSocket>();
  return sockets;
}

// A sender that keeps sent messages releases at most the messages that it has sent.
TEST(SocketCommTest, HostileAcknowledgementsBreakTheConnectionWithASentence) {
  const auto failure = [](const Frame& frame) -> std::string {
    const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
    auto [ours, theirs] = fuzz::JoinedSockets();
    const auto sender = MakeSender(Over(std::move(ours)), helpers);
    const std::vector<std::byte> data(kKeepBytes + 1);
    NetRequest* const request = *sender->Isend({data.data(), data.size()});
    EXPECT_TRUE(sender->Progress().ok());
    EXPECT_FALSE(*sender->Test(*request));  // sent, but held
    std::array<std::byte, kFrameBytes> bytes;
    EncodeFrame(frame, bytes);
    EXPECT_EQ(::send(theirs.get(), bytes.data(), bytes.size(), 0), ssize_t{kFrameBytes});
    const Result<bool> moved = sender->Progress();
    if (!moved.ok()) return std::string(moved.status().message());
    return *sender->Test(*request) ? "done" : "held";
  };
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 8, 8}), "held");
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 7, 8}), "done");
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 6, 8}),
            "the receiver has 2 messages, but 1 were sent and it had 0 before");
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 9, 8}),
            "the receiver has 18446744073709551615 messages, but 1 were sent and it had 0 before");
  EXPECT_EQ(failure({FrameType::kResume, 0, 0, 0, 0}),
            "the receiver wants to go on after 0 messages, but 1 were sent and it had 0 before");
}

// A receiver that always grants but never acknowledges makes the sender keep no more than its
// bound.
TEST(SocketCommTest, ASenderKeepsNoMoreThanItsBound) {
  const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
  auto [ours, theirs] = fuzz::JoinedSockets();
  const auto sender = MakeSender(Over(std::move(ours)), helpers);
  const std::vector<std::byte> data(kKeepBytes);
  std::vector<std::byte> taken(2 * data.size());
  Status status;
  for (uint64_t group = 0; group < 100 && status.ok(); ++group) {
    std::array<std::byte, kFrameBytes + kGroupTagsBytes> bytes;
    EncodeFrame({FrameType::kGroup, 1, 0, 0, group}, std::span(bytes).first<kFrameBytes>());
    EncodeGroupTags({7}, std::span(bytes).last<kGroupTagsBytes>());
    ASSERT_EQ(::send(theirs.get(), bytes.data(), bytes.size(), 0), ssize_t{bytes.size()});
    const Result<NetRequest*> request = sender->Isend({data.data(), data.size(), 7});
    status = request.status();
    if (!status.ok()) break;
    ASSERT_NE(*request, nullptr);
    ASSERT_TRUE(sender->Progress().ok());
    EXPECT_TRUE(*sender->Test(**request));
    while (::recv(theirs.get(), taken.data(), taken.size(), 0) > 0) {
    }
  }
  EXPECT_EQ(status.message(),
            "the receiver wants more messages, but of 65 that were sent it has said only of 0 that "
            "it has them");
}

// The acknowledgement of a message leaves before the message's request is done, also where the
// socket takes nothing for a while.
TEST(SocketCommTest, ARequestIsNotDoneBeforeTheSenderCanKnow) {
  const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
  auto [ours, theirs] = fuzz::JoinedSockets();
  const int fd = ours.get();
  const auto receiver = MakeReceiver(Over(std::move(ours)), helpers);
  std::vector<std::byte> buffer(kKeepBytes + 1);
  NetRequest* const request = *fuzz::ReceiveOne(*receiver, buffer.data(), buffer.size());
  size_t filled = 0;
  std::array<std::byte, kFrameBytes> bytes = {};
  for (ssize_t sent = 0; (sent = ::send(fd, bytes.data(), bytes.size(), 0)) > 0;) filled += sent;
  EncodeFrame({FrameType::kData, 0, 0, static_cast<uint32_t>(buffer.size()), 0}, bytes);
  ASSERT_EQ(::send(theirs.get(), bytes.data(), bytes.size(), 0), ssize_t{kFrameBytes});
  ASSERT_EQ(::send(theirs.get(), buffer.data(), buffer.size(), 0), ssize_t(buffer.size()));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(receiver->Progress().ok());
  EXPECT_FALSE(*receiver->Test(*request));
  std::vector<std::byte> filling(filled);
  ASSERT_EQ(::recv(theirs.get(), filling.data(), filled, MSG_WAITALL), ssize_t(filled));
  EXPECT_TRUE(*receiver->Test(*request));
  ASSERT_EQ(::recv(theirs.get(), bytes.data(), bytes.size(), 0), ssize_t{kFrameBytes});
  const Result<Frame> grant = DecodeFrame(bytes);
  ASSERT_TRUE(grant.ok());
  EXPECT_EQ(grant->type, FrameType::kGrant);
  EXPECT_EQ(grant->count - grant->bytes, 1u);
}

// A busy receiver whose caller comes again acknowledges several messages at once, and an idle
// receiver acknowledges with the next call of Progress. A receiver whose caller waits for no
// further message acknowledges two at once.
TEST(SocketCommTest, ABusyReceiverAcknowledgesSeveralMessagesAtOnce) {
  const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
  auto [ours, theirs] = fuzz::JoinedSockets();
  auto receiver = MakeReceiver(Over(std::move(ours)), helpers);
  std::vector<std::byte> buffer(kKeepBytes + 1);
  uint64_t number = 0;
  // Sends and receives a message. Returns the number of messages that the sender knows to have
  // come, and -1 without an acknowledgement.
  const auto receive = [&, &there = theirs] {
    NetRequest* const request = *fuzz::ReceiveOne(*receiver, buffer.data(), buffer.size());
    std::array<std::byte, kFrameBytes> frame = {};
    EncodeFrame({FrameType::kData, 0, 0, static_cast<uint32_t>(buffer.size()), number++}, frame);
    EXPECT_EQ(::send(there.get(), frame.data(), frame.size(), 0), ssize_t{kFrameBytes});
    EXPECT_EQ(::send(there.get(), buffer.data(), buffer.size(), 0), ssize_t(buffer.size()));
    while (!*receiver->Test(*request)) EXPECT_TRUE(*receiver->Progress());
    if (::recv(there.get(), frame.data(), frame.size(), 0) != ssize_t{kFrameBytes}) return -1;
    const Frame grant = DecodeFrame(frame).value();
    return static_cast<int>(grant.count) - static_cast<int>(grant.bytes);
  };
  EXPECT_EQ(receive(), 1);
  EXPECT_EQ(receiver->Care(), NetCare::kNone);
  receiver->ExpectMore(true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(receive(), -1);
  EXPECT_EQ(receive(), 5);
  EXPECT_EQ(receive(), -1);
  EXPECT_EQ(receiver->Care(), NetCare::kSoon);
  EXPECT_TRUE(receiver->Progress().ok());  // nothing came meanwhile
  EXPECT_EQ(receiver->Care(), NetCare::kNone);
  std::array<std::byte, kFrameBytes> frame = {};
  EXPECT_EQ(::recv(theirs.get(), frame.data(), frame.size(), 0), ssize_t{kFrameBytes});
  EXPECT_EQ(receive(), -1);
  receiver->ExpectMore(false);
  EXPECT_EQ(receive(), 8);
  EXPECT_EQ(receive(), -1);
  EXPECT_EQ(receiver->Care(), NetCare::kSoon);
  receiver.reset();
  EXPECT_EQ(::recv(theirs.get(), frame.data(), frame.size(), 0), ssize_t{kFrameBytes});
  const Frame last = DecodeFrame(frame).value();
  EXPECT_EQ(last.count - last.bytes, 9u);
}

// A receiver that read all bytes, and ended in order before its acknowledgement, has the messages.
TEST(SocketCommTest, AnOrderlyEndSaysThatAllWasRead) {
  const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
  for (const bool reads_all : {true, false}) {
    auto [ours, theirs] = fuzz::JoinedSockets();
    const auto sender = MakeSender(Over(std::move(ours)), helpers);
    std::vector<std::byte> data(kKeepBytes + 1);
    NetRequest* const request = *sender->Isend({data.data(), data.size()});
    ASSERT_NE(request, nullptr);
    while (!*sender->Progress()) {
    }
    EXPECT_FALSE(*sender->Test(*request));
    std::vector<std::byte> taken(kFrameBytes + data.size() - (reads_all ? 0 : 1));
    ASSERT_EQ(::recv(theirs.get(), taken.data(), taken.size(), MSG_WAITALL),
              static_cast<ssize_t>(taken.size()));
    theirs.Reset();
    const Result<bool> moved = sender->Progress();
    ASSERT_TRUE(moved.ok()) << moved.status().message();
    EXPECT_EQ(*sender->Test(*request), reads_all);
    // The end with unread bytes reset the connection, and the sender waits for new sockets.
    sender->LookClosely();
    EXPECT_EQ(sender->Progress().ok(), !reads_all);
  }
}

// Seeded damage to streams of groups.
TEST(SocketCommTest, DamagedGroupsAreDeliveredOrRefused) {
  for (unsigned seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const size_t size = random() % 4 + 1;
    std::vector<std::byte> stream;
    std::vector<uint32_t> tags(size);
    for (uint64_t message = 0; message < 4 * size; ++message) {
      if (message % size == 0) {
        for (size_t i = 0; i < size; ++i) tags[i] = static_cast<uint32_t>(i + 1);
        std::shuffle(tags.begin(), tags.end(), random);
      }
      const auto bytes = static_cast<uint32_t>(random() % 600);
      std::array<std::byte, kFrameBytes> frame;
      EncodeFrame({FrameType::kData, 0, 3, bytes, message, tags[message % size]}, frame);
      stream.insert(stream.end(), frame.begin(), frame.end());
      stream.resize(stream.size() + bytes, std::byte{1});
    }
    std::vector<std::byte> grants;
    for (uint64_t group = 0; group < 12; ++group) {
      std::array<std::byte, kFrameBytes + kGroupTagsBytes> bytes;
      EncodeFrame({FrameType::kGroup, static_cast<uint8_t>(size), 0, 0, group},
                  std::span(bytes).first<kFrameBytes>());
      GroupTags granted = {};
      for (size_t i = 0; i < size; ++i) granted[i] = static_cast<uint32_t>(i + 1);
      EncodeGroupTags(granted, std::span(bytes).last<kGroupTagsBytes>());
      grants.insert(grants.end(), bytes.begin(), bytes.end());
    }
    for (auto flips = random() % 3; flips > 0; --flips) {
      stream[random() % stream.size()] ^= static_cast<std::byte>(1u << (random() % 8));
      grants[random() % grants.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    fuzz::FeedReceiver(stream, random() % 900 + 1, 0, size);
    fuzz::FeedTaggedSender(grants, random() % 90 + 1);
  }
}

TEST(SocketCommTest, HostileGrantsBreakTheConnectionWithASentence) {
  const auto failure = [](const Frame& frame) -> std::string {
    const std::shared_ptr<SocketHelpers> helpers = SocketHelpers::Create(0).value();
    auto [ours, theirs] = fuzz::JoinedSockets();
    SocketSet sockets;
    sockets.control = std::move(ours);
    const auto sender = MakeSender(std::move(sockets), helpers);
    std::byte data = {};
    for (uint64_t i = 0; i < kNetWindow + kCreditMessages; ++i) {
      NetRequest* request = *sender->Isend({&data, 1});
      EXPECT_TRUE(sender->Progress().ok());
      EXPECT_TRUE(*sender->Test(*request));
    }
    std::array<std::byte, kFrameBytes> bytes;
    EncodeFrame(frame, bytes);
    EXPECT_EQ(::send(theirs.get(), bytes.data(), bytes.size(), 0), ssize_t{kFrameBytes});
    const Result<NetRequest*> next = sender->Isend({&data, 1});
    return next.ok() ? (*next ? "granted" : "none") : std::string(next.status().message());
  };
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 0, 9}), "granted");
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 0, 8}), "none");
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 0, 7}),
            "the receiver granted messages up to 7, but 104 were sent and 8 granted");
  EXPECT_EQ(failure({FrameType::kGrant, 0, 0, 0, 113}),
            "the receiver granted messages up to 113, but 104 were sent and 8 granted");
  EXPECT_EQ(failure({FrameType::kData, 0, 0, 1, 9}),
            "the receiver sent data against the direction");
}

}  // namespace
}  // namespace tutti
