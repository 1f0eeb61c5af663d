#include "sys/fd_wire.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <array>
#include <cstring>
#include <filesystem>

namespace tutti::fd_wire {
namespace {

int OpenDescriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// Sends `message` with `fds`, like a peer that breaks the protocol.
void SendWith(int socket_fd, Message message, const std::array<int, 2>& fds) {
  iovec part{&message, sizeof(message)};
  union {
    cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(fds))];
  } control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.bytes;
  header.msg_controllen = sizeof(control.bytes);
  cmsghdr* rights = CMSG_FIRSTHDR(&header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(fds));
  std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(fds));
  ASSERT_EQ(sendmsg(socket_fd, &header, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(message)));
}

TEST(FdWireTest, OfTwoDescriptorsPassedNoneIsLeftBehind) {
  std::array<int, 2> ends;
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  const UniqueFd a(ends[0]);
  const UniqueFd b(ends[1]);
  const UniqueFd first(eventfd(0, EFD_CLOEXEC));
  const UniqueFd second(eventfd(0, EFD_CLOEXEC));
  const int before = OpenDescriptors();
  SendWith(a.get(), Make(kGrant, 7), {first.get(), second.get()});
  UniqueFd passed;
  EXPECT_EQ(Receive(b.get(), &passed).outcome, Outcome::kMessage);
  EXPECT_TRUE(passed.valid());
  EXPECT_EQ(OpenDescriptors(), before + 1);
  passed.Reset();
  SendWith(a.get(), Make(kGrant, 7), {first.get(), second.get()});
  EXPECT_EQ(Receive(b.get(), nullptr).outcome, Outcome::kMessage);
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace tutti::fd_wire
