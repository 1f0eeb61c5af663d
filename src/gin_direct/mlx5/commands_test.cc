// The bytes of the commands for mlx5 cards. The expected words are written down by hand from the
// card's reference manual.

#include "gin_direct/mlx5/commands.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <vector>

#include "gin_direct/mlx5/queues.h"

namespace tutti {
namespace {

// The words of a command that are not zero, by their number.
using Words = std::map<size_t, uint32_t>;

template <size_t kBytes>
Words WordsOf(const Mlx5Command<kBytes>& command) {
  Words words;
  for (size_t i = 0; i < kBytes; i += 4) {
    uint32_t word = 0;
    for (size_t k = 0; k < 4; ++k) word = word << 8 | command.bytes[i + k];
    if (word != 0) words[i / 4] = word;
  }
  return words;
}
template <size_t kBytes>
void ExpectWords(const Mlx5Command<kBytes>& command, const Words& expected) {
  const Words found = WordsOf(command);
  std::ostringstream text;
  for (const auto& [number, word] : found)
    text << number << ": " << std::hex << word << std::dec << " ";
  EXPECT_EQ(found, expected) << "found " << text.str();
}

TEST(Mlx5CommandsTest, ACompletionQueueLiesInItsUmems) {
  ExpectWords(CreateCompletions({.log_size = 7,
                                 .uar_page = 0x123456,
                                 .event_queue = 9,
                                 .entries = {.umem = 0x11, .offset = 0x2'0000'1000},
                                 .record = {.umem = 0x22, .offset = 0x3'0000'2040}}),
              {{0, 0x04000000},     // CREATE_CQ
               {4, 0x02020000},     // the record lies in a umem; overruns are ignored
               {5, 0x22},           // the umem of the record
               {7, 0x07123456},     // the size, and the page of doorbell registers
               {9, 9},              // the event queue
               {18, 3},             // the record's place, upper half
               {19, 0x00002040},    // and lower half
               {20, 2},             // the entries' place, upper half
               {21, 0x00001000},    // and lower half
               {22, 0x11},          // the umem of the entries
               {23, 0x80000000}});  // which is valid
}

TEST(Mlx5CommandsTest, AQueuePairNamesItsDomainAndCompletions) {
  ExpectWords(CreatePair({.log_size = 7,
                          .domain = 0xabcdef,
                          .uar_page = 0x123456,
                          .completions = 0x456,
                          .entries = {.umem = 0x11, .offset = 0x1000},
                          .record = {.umem = 0x22, .offset = 0x2040}}),
              {{0, 0x05000000},     // CREATE_QP
               {6, 0x00001800},     // the only route is in use
               {7, 0x00abcdef},     // the protection domain
               {8, 0x00003800},     // the size of the send queue
               {9, 0x00123456},     // the page of doorbell registers
               {37, 0x456},         // completions of sends
               {45, 0x456},         // completions of receives
               {47, 0x00002040},    // the record's place
               {49, 0x03000000},    // no receive queue
               {58, 0x10000000},    // the record lies in a umem
               {63, 0x22},          // this one
               {65, 0x1000},        // the entries' place
               {66, 0x11},          // their umem
               {67, 0x80000000}});  // which is valid
}

Mlx5Route RouteOf(bool ethernet) {
  Mlx5Route route = {.port = 2,
                     .pkey_index = 5,
                     .remote_pair = 0x778899,
                     .remote = {},
                     .remote_mac = {0x02, 0x11, 0x22, 0x33, 0x44, 0x55},
                     .global = ethernet,
                     .gid_index = 3,
                     .mtu = 5,
                     .traffic_class = 0x6a,
                     .service_level = 13,
                     .timeout = 20,
                     .retry_count = 7,
                     .log_reads = 4};
  route.remote.lid = 0x1234;
  route.remote.ethernet = ethernet ? 1 : 0;
  for (size_t i = 0; i < 16; ++i) route.remote.gid[i] = static_cast<uint8_t>(0xa0 + i);
  return route;
}

TEST(Mlx5CommandsTest, StatesOfAQueuePairCarryTheirPartsOfTheRoute) {
  const Mlx5Route route = RouteOf(false);
  ExpectWords(ResetToInit(0x654321, route), {{0, 0x05020000},
                                             {2, 0x00654321},
                                             {6, 0x00001800},
                                             {12, 0x00000005},    // the partition key
                                             {21, 0x00020000},    // the port
                                             {42, 0x0001e000}});  // serves all, and atomics
  ExpectWords(InitToReceive(0x654321, route), {{0, 0x05030000},
                                               {2, 0x00654321},
                                               {8, 0xbe000000},     // MTU and longest message
                                               {11, 0x00778899},    // the other end
                                               {13, 0x00001234},    // its LID
                                               {21, 0x0d020000},    // service level and port
                                               {42, 0x00800000},    // reads served
                                               {43, 0x0c000000}});  // not ready
  ExpectWords(ReceiveToSend(0x654321, route), {{0, 0x05040000},
                                               {2, 0x00654321},
                                               {14, 0xa0000000},  // the timeout
                                               {21, 0x00020000},
                                               {34, 0x0087e000}});  // reads and retries
}

TEST(Mlx5CommandsTest, ARouteOverEthernetGoesByAddressesInsteadOfALid) {
  ExpectWords(InitToReceive(0x654321, RouteOf(true)), {{0, 0x05030000},
                                                       {2, 0x00654321},
                                                       {8, 0xbe000000},
                                                       {11, 0x00778899},
                                                       {14, 0x000300ff},  // GID's index, hops
                                                       {15, 0x06a00000},  // the traffic class
                                                       {16, 0xa0a1a2a3},
                                                       {17, 0xa4a5a6a7},
                                                       {18, 0xa8a9aaab},
                                                       {19, 0xacadaeaf},
                                                       {20, 0x001ac000},  // DSCP, UDP port
                                                       {21, 0x50020211},  // priority, port
                                                       {22, 0x22334455},  // the rest of the MAC
                                                       {42, 0x00800000},
                                                       {43, 0x0c000000}});
}

TEST(Mlx5CommandsTest, AnswersAreRead) {
  Mlx5ShortAnswer answer;
  answer.bytes = {0x08, 0, 0, 0, 0x12, 0x34, 0x56, 0x78, 0xff, 0x65, 0x43, 0x21, 0, 0, 0, 0};
  EXPECT_EQ(StatusIn(answer.bytes), 8u);
  EXPECT_EQ(SyndromeIn(answer.bytes), 0x12345678u);
  EXPECT_EQ(NumberIn(answer), 0x654321u);
  ExpectWords(QueryPair(0x654321), {{0, 0x050b0000}, {2, 0x00654321}});
  Mlx5QueryAnswer state;
  for (uint8_t s = 0; s < 16; ++s) {
    state.bytes[24] = static_cast<uint8_t>(s << 4 | 0xf);
    EXPECT_EQ(HasStopped(state), s == 6) << static_cast<int>(s);
  }
}

// ---- The layout of queues

TEST(Mlx5QueueLayoutTest, PartsLieApartInWholePages) {
  for (const size_t count : {1, 3, 100})
    for (const uint32_t depth : {1u, 64u, 128u, 32'768u}) {
      const Mlx5QueueLayout layout(count, depth);
      const size_t ring = size_t{depth} * device::mlx5::kEntryBytes;
      size_t end = 0;
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(layout.CompletionsAt(i) % 4096, 0u);
        EXPECT_EQ(layout.EntriesAt(i) % 4096, 0u);
        EXPECT_GE(layout.CompletionsAt(i), end);
        EXPECT_GE(layout.EntriesAt(i), layout.CompletionsAt(i) + ring);
        end = layout.EntriesAt(i) + ring;
      }
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(layout.CompletionsRecordAt(i) % 64, 0u);
        EXPECT_GE(layout.CompletionsRecordAt(i), end);
        EXPECT_GE(layout.RecordAt(i), layout.CompletionsRecordAt(i) + 64);
        end = layout.RecordAt(i) + 64;
      }
      EXPECT_GE(layout.bytes(), end);
      EXPECT_EQ(layout.bytes() % 4096, 0u);
    }
}

// A card that polls a fresh entry must take it for none: opcode 15, with the owner bit set.
TEST(Mlx5QueueLayoutTest, FreshCompletionsAreInvalidAndNothingElseIsTouched) {
  const Mlx5QueueLayout layout(3, 8);
  std::vector<std::byte> memory(layout.bytes());
  layout.Fill(memory.data());
  size_t marks = 0;
  for (size_t i = 0; i < 3; ++i)
    for (size_t entry = 0; entry < 8; ++entry) {
      const size_t last = layout.CompletionsAt(i) + (entry + 1) * device::mlx5::kEntryBytes - 1;
      EXPECT_EQ(memory[last], std::byte{0xf1});
      ++marks;
    }
  EXPECT_EQ(
      memory.size() - static_cast<size_t>(std::count(memory.begin(), memory.end(), std::byte{0})),
      marks);
}

}  // namespace
}  // namespace tutti
