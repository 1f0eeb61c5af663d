// One-sided operations over sockets: the contract, hostile frames, and handles of the wrong kind.

#include "transport/net/socket/rma_comm.h"

#include <random>

#include "transport/testing/rma_contract.h"
#include "transport/testing/rma_fuzz_target.h"
#include "transport/testing/socket_net_pair.h"

namespace tutti {
namespace {

class SocketRmaContract : public RmaContract {};
TEST_P(SocketRmaContract, Holds) { Run(); }
INSTANTIATE_TEST_SUITE_P(Socket, SocketRmaContract,
                         RmaContractCasesFor(SocketFactory("Socket", 1, 1)), RmaContractCaseName);

// A comm, and the socket of an attacker at its other end.
struct Attacked {
  UniqueFd attacker;
  std::unique_ptr<SocketRmaComm> comm;
  std::vector<uint64_t> words = std::vector<uint64_t>(512);
  std::unique_ptr<NetMemory> memory;  // 4096 bytes under key 1

  Attacked() {
    SocketSet sockets;
    std::tie(sockets.control, attacker) = fuzz::JoinedSockets();
    comm = std::make_unique<SocketRmaComm>(
        SocketChannel::Create(std::move(sockets), SocketDirection::kSend,
                              SocketHelpers::Create(0).value())
            .value(),
        1);
    memory = comm->Register({reinterpret_cast<std::byte*>(words.data()), 4096}).value();
  }
  void Write(const RmaFrame& frame, size_t payload = 0) {
    std::vector<std::byte> bytes(kRmaFrameBytes + payload, std::byte{7});
    EncodeRmaFrame(frame, std::span(bytes).first<kRmaFrameBytes>());
    ASSERT_EQ(::send(attacker.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  std::string Failure() {
    for (int i = 0; i < 10; ++i) {
      const Result<bool> moved = comm->Progress();
      if (!moved.ok()) return std::string(moved.status().message());
    }
    return "";
  }
};

RmaFrame Frame(RmaFrameType type, uint32_t bytes, uint64_t number) {
  RmaFrame frame;
  frame.type = type;
  frame.bytes = bytes;
  frame.number = number;
  return frame;
}

TEST(SocketRmaCommTest, HostileFramesBreakTheConnectionWithASentence) {
  const auto failure = [](const RmaFrame& frame) {
    Attacked attacked;
    attacked.Write(frame);
    return attacked.Failure();
  };
  RmaFrame put = Frame(RmaFrameType::kPut, 8, 0);
  put.key = 1;
  EXPECT_EQ(failure(put), "");
  put.offset = 4089;
  EXPECT_EQ(failure(put),
            "the peer's operation 0 was refused: it reaches outside the range of its key");
  put.key = 2;
  EXPECT_EQ(failure(put),
            "the peer's operation 0 was refused: it names a key that was not given out, or no "
            "longer holds");
  EXPECT_EQ(failure(Frame(RmaFrameType::kFlush, 0, 1)),
            "the peer asked for operation 1 instead of 0");
  EXPECT_EQ(failure(Frame(RmaFrameType::kFlushed, 0, 0)),
            "the peer answered operation 0 with 0 bytes, which was not asked for");
  EXPECT_EQ(failure(Frame(RmaFrameType::kGot, 8, 0)),
            "the peer answered operation 0 with 8 bytes, which was not asked for");
  EXPECT_EQ(failure(Frame(RmaFrameType::kFetched, 0, 0)),
            "the peer answered operation 0 with 0 bytes, which was not asked for");
  RmaFrame atomic = Frame(RmaFrameType::kAtomic, 0, 0);
  atomic.key = 1;
  atomic.offset = 4088;
  EXPECT_EQ(failure(atomic), "");
  atomic.offset = 4092;
  EXPECT_EQ(failure(atomic),
            "the peer's operation 0 was refused: it reaches outside the range of its key");
  atomic.offset = 12;
  EXPECT_EQ(failure(atomic),
            "the peer's operation 0 was refused: its word is not aligned to 8 bytes");
  RmaFrame refused = Frame(RmaFrameType::kRefused, 0, 3);
  refused.detail = static_cast<uint8_t>(RmaRefusal::kMisaligned);
  EXPECT_EQ(failure(refused),
            "the peer refused operation 3 of this connection: its word is not aligned to 8 bytes");
}

TEST(SocketRmaCommTest, AnAnswerBeforeTheQuestionIsNotTaken) {
  Attacked attacked;
  ASSERT_TRUE(*attacked.comm->Iflush());
  attacked.Write(Frame(RmaFrameType::kFlushed, 0, 0));
  EXPECT_EQ(attacked.Failure(), "the peer answered operation 0 before it was asked");
}

// An attacker that asks and never reads answers is stopped, and costs a bounded queue.
TEST(SocketRmaCommTest, UnreadAnswersAreBounded) {
  Attacked attacked;
  std::string failure;
  for (uint64_t number = 0; number < 100'000 && failure.empty(); ++number) {
    RmaFrame get = Frame(RmaFrameType::kGet, 4096, number);
    get.key = 1;
    attacked.Write(get);
    const Result<bool> moved = attacked.comm->Progress();
    if (!moved.ok()) failure = std::string(moved.status().message());
  }
  EXPECT_NE(failure.find("too many operations wait for their answers"), std::string::npos)
      << failure;
}

// The owner ends a registration while a put is half there. The comm breaks and writes nothing any
// more.
TEST(SocketRmaCommTest, ARangeThatEndsInUseBreaksTheComm) {
  Attacked attacked;
  RmaFrame put = Frame(RmaFrameType::kPut, 1000, 0);
  put.key = 1;
  attacked.Write(put, 10);
  EXPECT_EQ(attacked.Failure(), "");
  attacked.memory.reset();
  EXPECT_EQ(attacked.Failure(), "a registration was ended while the other end still used it");
}

TEST(SocketRmaCommTest, DamagedStreamsAreServedOrRefused) {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned bound) { return static_cast<uint32_t>(random() % bound); };
    std::vector<std::byte> stream;
    for (uint64_t number = 0; number < 12; ++number) {
      const RmaFrameType questions[] = {RmaFrameType::kPut, RmaFrameType::kGet,
                                        RmaFrameType::kFlush, RmaFrameType::kAtomic};
      RmaFrame frame = Frame(questions[below(4)], 0, number);
      if (frame.type == RmaFrameType::kAtomic) {
        frame.key = fuzz::kRmaKeys[below(2)];
        frame.offset = below(fuzz::kRmaRangeBytes / 8) * 8;
        frame.detail = static_cast<uint8_t>(below(2));
        frame.signal_value = random();
      } else if (frame.type != RmaFrameType::kFlush) {
        frame.bytes = below(200);
        frame.key = fuzz::kRmaKeys[below(2)];
        frame.offset = below(fuzz::kRmaRangeBytes - frame.bytes + 1);
      }
      if (frame.type == RmaFrameType::kPut && below(2) == 0) {
        frame.detail = 1;
        frame.signal_key = fuzz::kRmaKeys[below(2)];
        frame.signal_offset = below(fuzz::kRmaRangeBytes / 8) * 8;
        frame.signal_value = random();
      }
      const size_t at = stream.size();
      const bool put = frame.type == RmaFrameType::kPut;
      stream.resize(at + kRmaFrameBytes + (put ? frame.bytes : 0), std::byte{1});
      EncodeRmaFrame(frame, std::span(stream).subspan(at).first<kRmaFrameBytes>());
    }
    for (uint32_t flips = below(4); flips > 0; --flips) {
      stream[random() % stream.size()] ^= static_cast<std::byte>(1u << below(8));
    }
    fuzz::FeedRma(stream, below(900) + 1);
  }
}

TEST(SocketRmaCommTest, FramesComeBackAsTheyWent) {
  RmaFrame frame = Frame(RmaFrameType::kPut, 77, 1);
  frame = {RmaFrameType::kPut, 1, 77, 1, 2, 3, 4, 5, ~uint64_t{0}};
  std::array<std::byte, kRmaFrameBytes> bytes;
  for (const RmaFrame& other :
       {RmaFrame{RmaFrameType::kAtomic, 1, 0, 1, 2, 3, 0, 4, 5},
        RmaFrame{RmaFrameType::kAtomic, 0, 0, 1, 2, 3, 0, 0, 5},
        RmaFrame{RmaFrameType::kFetched, 0, 0, 1, 0, 0, 0, 0, ~uint64_t{0}}, frame}) {
    EncodeRmaFrame(other, bytes);
    ASSERT_TRUE(DecodeRmaFrame(bytes).ok());
    EXPECT_EQ(*DecodeRmaFrame(bytes), other);
  }
  for (const size_t at : {0u, 2u, 3u, 7u}) {  // magic, type, detail, length
    std::array<std::byte, kRmaFrameBytes> other = bytes;
    other[at] ^= std::byte{0x88};
    EXPECT_EQ(DecodeRmaFrame(other).status().code(), Code::kRemoteError) << at;
  }
}

TEST(SocketRmaCommTest, HandlesOfTheOtherKindAreRefused) {
  const auto pair = SocketFactory("Socket", 1, 1).make();
  const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
  const auto messages = pair->receiving().Listen(0).value();
  const auto one_sided = pair->receiving().rma()->Listen(0).value();
  EXPECT_EQ(pair->sending().Connect(0, one_sided->handle(), limits).status().message(),
            "the peer's handle is one for one-sided operations");
  EXPECT_EQ(pair->sending().rma()->Connect(0, messages->handle(), limits).status().message(),
            "the peer's handle is one for messages");
}

}  // namespace
}  // namespace tutti
