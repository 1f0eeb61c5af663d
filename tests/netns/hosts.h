#pragma once

// Hosts that are network namespaces, two joined by a cable or more joined by a switch: nothing but
// sockets can join their ranks. Tests on them are skipped with a sentence where that is not
// allowed.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "conformance/cases.h"
#include "conformance/processes.h"

namespace tutti::testing {

inline bool Shell(const std::string& command) {
  const int status = std::system((command + " 2>/dev/null").c_str());
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Network namespaces, each known by a letter, until the object ends.
class Namespaces {
 public:
  explicit Namespaces(const std::string& letters) : letters_(letters) {
    for (const char letter : letters_)
      made_ = made_ && Shell(fmt::format("ip netns add {}", Name(letter)));
  }
  ~Namespaces() {
    for (const char letter : letters_) Shell(fmt::format("ip netns del {}", Name(letter)));
  }
  Namespaces(const Namespaces&) = delete;
  Namespaces& operator=(const Namespaces&) = delete;

  // Returns whether this machine allows all that was asked for.
  bool made() const { return made_; }
  std::string Name(char letter) const { return fmt::format("tutti-{}-{}", maker_, letter); }
  // Moves the calling process, which has one thread yet, into a namespace.
  void Enter(char letter) const {
    const int fd =
        open(fmt::format("/var/run/netns/{}", Name(letter)).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(setns(fd, CLONE_NEWNET), 0);
    close(fd);
  }

 protected:
  bool made_ = true;

 private:
  const pid_t maker_ = getpid();  // not the pid of the rank processes that use the names
  const std::string letters_;
};

// Two namespaces with one cable between them. IPv4 and IPv6 addresses of private ranges.
class TwoHosts : public Namespaces {
 public:
  TwoHosts() : Namespaces("ab") {
    // An interface has another number on each host, as between any two machines.
    made_ = made_ && Shell(fmt::format("ip link add tutti0 index 77 netns {} type veth peer name "
                                       "tutti0 netns {}",
                                       Name('a'), Name('b')));
    int number = 1;
    for (const char side : {'a', 'b'}) {
      const std::string in = fmt::format("ip -n {} ", Name(side));
      made_ = made_ && Shell(fmt::format("{} addr add 10.213.77.{}/24 dev tutti0", in, number));
      Shell(fmt::format("{} addr add fd77:213::{}/64 dev tutti0 nodad", in, number));
      made_ = made_ && Shell(in + "link set lo up") && Shell(in + "link set tutti0 up");
      ++number;
    }
  }
  bool has_v6() const {
    return Shell(fmt::format("ip -n {} -6 addr show dev tutti0 | grep -q fd77", Name('a')));
  }
  // Leaves both hosts nothing but their IPv6 link-local addresses; false when they have none.
  bool KeepLinkLocalOnly() const {
    for (const char side : {'a', 'b'}) {
      const std::string in = fmt::format("ip -n {} addr ", Name(side));
      if (!Shell(in + "flush dev tutti0 scope global")) return false;
      // An address cannot be used while it is checked for duplicates, for a second or two.
      const std::string usable = in + "show dev tutti0 scope link -tentative | grep -q fe80";
      for (int tries = 0; !Shell(usable); ++tries) {
        if (tries == 50) return false;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
    }
    return true;
  }
  // Another cable beside the first, tutti1 on either side.
  bool AddCable() const {
    bool made = Shell(fmt::format("ip link add tutti1 netns {} type veth peer name tutti1 netns {}",
                                  Name('a'), Name('b')));
    int number = 1;
    for (const char side : {'a', 'b'}) {
      const std::string in = fmt::format("ip -n {} ", Name(side));
      made = made && Shell(fmt::format("{} addr add 10.213.78.{}/24 dev tutti1", in, number++)) &&
             Shell(in + "link set tutti1 up");
    }
    return made;
  }
  // Another interface on either side that leads nowhere. The interface comes before tutti0, and
  // both sides say that they are on its subnet.
  bool AddDeadEnds() const {
    bool made = true;
    int number = 1;
    for (const char side : {'a', 'b'}) {
      const std::string in = fmt::format("ip -n {} ", Name(side));
      made = made && Shell(in + "link add aeni5 index 50 type veth peer name aeni6") &&
             Shell(fmt::format("{} addr add 10.213.79.{}/24 dev aeni5", in, number++)) &&
             Shell(in + "link set aeni5 up") && Shell(in + "link set aeni6 up");
    }
    return made;
  }
  // Returns what an interface of host a has received, in bytes; -1 when `ip` does not say.
  int64_t ReceivedBy(const std::string& interface) const {
    const std::string command = fmt::format(
        "ip -n {} -s link show dev {} | awk '/RX:/ {{getline; print $1}}'", Name('a'), interface);
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), &pclose);
    long long bytes = -1;
    if (!pipe || std::fscanf(pipe.get(), "%lld", &bytes) != 1) return -1;
    return bytes;
  }
  void SetCable(bool up, const std::string& interface = "tutti0") const {
    EXPECT_TRUE(
        Shell(fmt::format("ip -n {} link set {} {}", Name('b'), interface, up ? "up" : "down")));
  }
};

// Four namespaces, each with one cable to a switch, which is a bridge in a namespace of its own.
class FourHosts : public Namespaces {
 public:
  FourHosts() : Namespaces("abcds") {
    const std::string in_switch = fmt::format("ip -n {} ", Name('s'));
    made_ = made_ && Shell(in_switch + "link add tutti type bridge") &&
            Shell(in_switch + "link set tutti up");
    int number = 1;
    for (const char host : {'a', 'b', 'c', 'd'}) {
      const std::string in = fmt::format("ip -n {} ", Name(host));
      const std::string port = fmt::format("port{}", number);
      made_ = made_ &&
              Shell(fmt::format("ip link add tutti0 netns {} type veth peer name {} netns {}",
                                Name(host), port, Name('s'))) &&
              Shell(fmt::format("{} link set {} master tutti up", in_switch, port)) &&
              Shell(fmt::format("{} addr add 10.213.79.{}/24 dev tutti0", in, number)) &&
              Shell(in + "link set lo up") && Shell(in + "link set tutti0 up");
      ++number;
    }
  }
};

inline bool Write(const char* file, const std::string& text) {
  const int fd = open(file, O_WRONLY | O_CLOEXEC);
  const bool written =
      fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (fd >= 0) close(fd);
  return written;
}

// Root may make network namespaces; a user may where he is root of a user namespace of his own, in
// which /run is his too, because `ip netns` keeps its names there. For the rest of this process.
inline bool BecomeRootHere() {
  if (geteuid() == 0) return true;
  const std::string user = fmt::format("0 {} 1", geteuid());
  const std::string group = fmt::format("0 {} 1", getegid());
  return unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) == 0 &&
         Write("/proc/self/setgroups", "deny") && Write("/proc/self/uid_map", user) &&
         Write("/proc/self/gid_map", group) &&
         mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount("tmpfs", "/run", "tmpfs", 0, nullptr) == 0;
}

// Tests on the hosts of a class of namespaces.
template <class Hosts>
class OnHosts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!BecomeRootHere())
      GTEST_SKIP() << "network namespaces need root, or a kernel that lets users make namespaces";
    if (!Shell("ip netns list"))
      GTEST_SKIP() << "network namespaces need the ip program (package iproute2)";
    hosts_ = std::make_unique<Hosts>();
    if (!hosts_->made()) GTEST_SKIP() << "this machine allows no network namespaces or veth pairs";
  }

  // `letters` has one for each rank, which says on which host it is.
  void RunCasesOn(const std::string& letters, const std::vector<Case>& cases,
                  double deadline_s = 120) {
    // NCCL_HOSTID stays unset: that these are several hosts must be seen from the namespaces.
    const std::vector<std::string> here(letters.size());
    RunOnHosts(here, cases, deadline_s,
               [&](int rank) { hosts_->Enter(letters[static_cast<size_t>(rank)]); });
  }

  std::unique_ptr<Hosts> hosts_;
};

}  // namespace tutti::testing
