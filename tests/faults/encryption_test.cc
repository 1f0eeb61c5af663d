// ncclSetEncryption: what leaves this process over sockets cannot be read, and ranks that do not
// agree on the key hear so.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/processes.h"
#include "tutti/tutti.h"

namespace {

constexpr std::string_view kSecret = "what nobody else may read";
std::atomic<int> secrets_seen = 0;

void LookForSecret(const void* data, size_t bytes) {
  const std::string_view sent(static_cast<const char*>(data), bytes);
  if (sent.find(kSecret) != std::string_view::npos) ++secrets_seen;
}

}  // namespace

// They take the place of the C library's in this program, and count what would show the secret on a
// wire.
extern "C" __attribute__((visibility("default"))) ssize_t sendmsg(int fd, const msghdr* message,
                                                                  int flags) {
  for (size_t i = 0; i < message->msg_iovlen; ++i)
    LookForSecret(message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
  return syscall(SYS_sendmsg, fd, message, flags);
}
extern "C" __attribute__((visibility("default"))) ssize_t send(int fd, const void* data,
                                                               size_t bytes, int flags) {
  LookForSecret(data, bytes);
  return syscall(SYS_sendto, fd, data, bytes, flags, nullptr, 0);
}

namespace tutti::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kKey = "a key that only the test's ranks know";
constexpr const char* kOtherKey = "another key that is as long as the first";

ncclResult_t SetKey(const char* key) {
  ncclEncryptionConfig_t config = NCCL_ENCRYPTION_CONFIG_INITIALIZER;
  config.mode = key == nullptr ? NCCL_ENCRYPTION_MODE_NONE : NCCL_ENCRYPTION_MODE_PSK;
  config.psk = key;
  return ncclSetEncryption(&config);
}

// Sends the secret, a short and a long message of it, from rank 0 to the others.
void BroadcastSecret(ncclComm_t comm, int rank) {
  for (const size_t bytes : {kSecret.size(), size_t{300'000}}) {
    std::vector<char> data(bytes);
    if (rank == 0) std::copy(kSecret.begin(), kSecret.end(), data.begin());
    EXPECT_NCCL(ncclBroadcast(data.data(), data.data(), bytes, ncclChar, 0, comm, nullptr));
    EXPECT_EQ(std::string_view(data.data(), kSecret.size()), kSecret);
  }
}

// Joins two ranks that share no memory, in processes of their own, and has `body` use them.
void RunWithKey(const char* key, const std::function<void(ncclComm_t, int rank)>& body) {
  const Environment environment(Environment::Settings{{"NCCL_SHM_DISABLE", "1"}});
  RunRankProcesses(2, [&](int rank, Board& board) {
    EXPECT_NCCL(SetKey(key));
    ncclComm_t comm = Join(rank, 2, board);
    ASSERT_NE(comm, nullptr);
    body(comm, rank);
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(EncryptionTest, WithoutAKeyDataTravelAsTheyAre) {
  RunWithKey(nullptr, [](ncclComm_t comm, int rank) {
    BroadcastSecret(comm, rank);
    if (rank == 0) {
      EXPECT_GE(secrets_seen, 2);
    }
  });
}

TEST(EncryptionTest, WithAKeyNobodyReadsThem) {
  RunWithKey(kKey, [](ncclComm_t comm, int rank) {
    BroadcastSecret(comm, rank);
    EXPECT_EQ(secrets_seen, 0);
  });
}

TEST(EncryptionTest, CommunicatorsMadeOfOthersKeepIt) {
  RunWithKey(kKey, [](ncclComm_t comm, int rank) {
    EXPECT_NCCL(SetKey(nullptr));
    ncclComm_t child = nullptr;
    ASSERT_NCCL(ncclCommSplit(comm, 0, rank, &child, nullptr));
    BroadcastSecret(child, rank);
    EXPECT_EQ(secrets_seen, 0);
    EXPECT_NCCL(ncclCommDestroy(child));
  });
}

TEST(EncryptionTest, RanksThatDisagreeHearSo) {
  for (const char* other : {kOtherKey, static_cast<const char*>(nullptr)}) {
    RunRankProcesses(2, [&](int rank, Board& board) {
      EXPECT_NCCL(SetKey(rank == 0 ? kKey : other));
      const ncclUniqueId id = SharedId(rank, board);
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
      EXPECT_THAT(ncclGetLastError(nullptr), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"),
                                                   HasSubstr("TUTTI_ENCRYPT=1 (key ")));
    });
  }
}

// Returns what tuttiCommDescribe says of the protection of data between hosts.
std::string ProtectionOf(ncclComm_t comm) {
  std::array<char, 8192> text{};
  EXPECT_NCCL(tuttiCommDescribe(comm, text.data(), text.size(), nullptr));
  const std::string_view all = text.data();
  const size_t at = all.find("\"protection\": {");
  return std::string(all.substr(at, all.find('}', at) - at));
}

TEST(EncryptionTest, WithoutASecretEveryRankFails) {
  const Environment environment(
      Environment::Settings{{"NCCL_SHM_DISABLE", "1"}, {"TUTTI_ENCRYPT", "1"}});
  RunRankProcesses(2, [&](int rank, Board& board) {
    const ncclUniqueId id = SharedId(rank, board);
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, 2, id, rank), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(nullptr),
                AllOf(HasSubstr("TUTTI_ENCRYPT is set without a secret"),
                      HasSubstr("set TUTTI_COMM_KEY"), HasSubstr("ncclSetEncryption")));
  });
}

TEST(EncryptionTest, RanksThatShareMemoryNeedNoSecret) {
  const Environment environment(Environment::Settings{{"TUTTI_ENCRYPT", "1"}});
  RunRankProcesses(2, [&](int rank, Board& board) {
    ncclComm_t comm = Join(rank, 2, board);
    ASSERT_NE(comm, nullptr);
    EXPECT_THAT(ProtectionOf(comm),
                AllOf(HasSubstr("\"encrypted\": false"), HasSubstr("\"secret\": \"none\"")));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

TEST(EncryptionTest, ACommunicatorTellsWhatIsInForce) {
  RunWithKey(kKey, [](ncclComm_t comm, int) {
    EXPECT_THAT(ProtectionOf(comm),
                AllOf(HasSubstr("\"network\": \"Socket\""), HasSubstr("\"encrypted\": true"),
                      ::testing::AnyOf(HasSubstr("\"cipher\": \"AES-256-GCM, or"),
                                       HasSubstr("\"cipher\": \"ChaCha20-Poly1305\"")),
                      HasSubstr("\"secret\": \"ncclSetEncryption\"")));
  });
  RunWithKey(nullptr, [](ncclComm_t comm, int) {
    EXPECT_THAT(ProtectionOf(comm),
                AllOf(HasSubstr("\"encrypted\": false"), HasSubstr("\"cipher\": \"\""),
                      HasSubstr("\"secret\": \"none\"")));
  });
  const Environment environment(
      Environment::Settings{{"TUTTI_COMM_KEY", "of the environment"}, {"TUTTI_ENCRYPT", "1"}});
  RunWithKey(nullptr, [](ncclComm_t comm, int rank) {
    BroadcastSecret(comm, rank);
    EXPECT_EQ(secrets_seen, 0);
    EXPECT_THAT(ProtectionOf(comm), AllOf(HasSubstr("\"encrypted\": true"),
                                          HasSubstr("\"secret\": \"TUTTI_COMM_KEY\"")));
  });
}

// A plugin is preferred to sockets where nobody asks for encryption.
TEST(EncryptionTest, ANetworkWithoutEncryptionIsTakenOnlyByItsName) {
  const Environment environment(Environment::Settings{{"NCCL_NET_PLUGIN", NET_PLUGIN}});
  RunWithKey(nullptr, [](ncclComm_t comm, int) {
    EXPECT_THAT(ProtectionOf(comm), HasSubstr("\"network\": \"Example\""));
  });
  RunWithKey(kKey, [](ncclComm_t comm, int) {
    EXPECT_THAT(ProtectionOf(comm), HasSubstr("\"network\": \"Socket\""));
  });
  const Environment named(
      Environment::Settings{{"NCCL_NET", "Example"}, {"NCCL_SHM_DISABLE", "1"}});
  RunRankProcesses(2, [&](int rank, Board& board) {
    EXPECT_NCCL(SetKey(kKey));
    ::testing::internal::CaptureStderr();
    ncclComm_t comm = Join(rank, 2, board);
    EXPECT_THAT(::testing::internal::GetCapturedStderr(),
                HasSubstr("asks for the network Example, which has no encryption"));
    ASSERT_NE(comm, nullptr);
    EXPECT_THAT(ProtectionOf(comm), HasSubstr("\"encrypted\": false"));
    EXPECT_NCCL(ncclCommDestroy(comm));
  });
}

}  // namespace
}  // namespace tutti::testing
