// Jobs without a secret whose NCCL_COMM_ID is a loopback address: the ranks meet at a local socket.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "bootstrap/auth.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/root.h"
#include "bootstrap/root_messages.h"
#include "bootstrap/testing/thread_ranks.h"

namespace tutti {
namespace {

using testing::Job;

Settings LoopbackWithoutASecret() {
  Settings settings = testing::LocalSettings();
  settings.comm_id = fmt::format("127.0.0.1:{}", testing::FreePort());
  return settings;
}

TEST(LocalMeeting, ALoopbackAddressNeedsNoSecret) {
  const Job job(3, 1, LoopbackWithoutASecret());
  const auto ranks = job.CreateAll();
  testing::ForEach(3, [&](int rank) {
    EXPECT_TRUE(ranks[static_cast<size_t>(rank)]->Barrier(Deadline::AfterSeconds(20)).ok());
  });
  // The key in the id is no secret; the ranks have another key, and have the same key.
  const Key& key = ranks[0]->key_holder().key;
  EXPECT_NE(key, job.ids[0].key);
  for (const auto& rank : ranks) EXPECT_EQ(rank->key_holder().key, key);

  Settings elsewhere = LoopbackWithoutASecret();
  elsewhere.comm_id = "192.0.2.1:4000";
  EXPECT_EQ(Root::Create(*job.loop, elsewhere).status().code(), Code::kInvalidUsage);
}

// Returns whether a process of another user, which knows the name and the key of the meeting, is
// answered as rank 1.
bool AnotherUserIsAnswered(const UniqueId& id) {
  const std::string name = id.LocalName();
  RootRequest request;
  request.rank = 1;
  request.num_ranks = 2;
  request.num_roots = 1;
  request.timeout_ms = 20'000;
  request.contact.address = *ParseSocketAddress("127.0.0.1:1");
  const Hello hello = {Purpose::kRoot, EncodeRootRequest(request)};
  const WaitLimits limits = {Deadline::AfterSeconds(20), nullptr};
  if (setuid(65534) != 0) return true;
  Result<SealedSocket> socket = ConnectAuthenticatedLocally(name, id.key, hello, limits);
  while (!socket.ok() && !limits.Over())
    socket = ConnectAuthenticatedLocally(name, id.key, hello, limits);
  std::array<std::byte, 1> byte;
  return !socket.ok() || socket->RecvAll(byte, limits).code() != Code::kRemoteError;
}

TEST(LocalMeeting, AnotherUserDoesNotJoinAtALoopbackAddress) {
  if (getuid() != 0) GTEST_SKIP() << "needs two users";
  const Job job(2, 1, LoopbackWithoutASecret());
  const pid_t stranger = fork();
  if (stranger == 0) _exit(AnotherUserIsAnswered(job.ids[0]) ? 1 : 0);
  testing::ForEach(2, [&](int rank) {
    int status = 0;
    if (rank == 1) {
      EXPECT_EQ(waitpid(stranger, &status, 0), stranger);
      EXPECT_EQ(status, 0);
    }
    const auto bootstrap = job.Create(rank);
    ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
    EXPECT_TRUE((*bootstrap)->Barrier(Deadline::AfterSeconds(20)).ok());
  });
}

}  // namespace
}  // namespace tutti
