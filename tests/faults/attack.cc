#include "faults/attack.h"

#include <dirent.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

namespace tutti::testing {
namespace {

constexpr const char* kListening = "0A";  // the state's number in /proc/net/tcp

std::set<std::string> SocketInodes(pid_t pid) {
  std::set<std::string> inodes;
  const std::string folder = fmt::format("/proc/{}/fd", pid);
  DIR* const dir = opendir(folder.c_str());
  while (const dirent* entry = dir == nullptr ? nullptr : readdir(dir)) {
    std::array<char, 64> target{};
    if (readlink((folder + "/" + entry->d_name).c_str(), target.data(), target.size() - 1) < 0)
      continue;
    const std::string text = target.data();
    if (text.rfind("socket:[", 0) == 0) inodes.insert(text.substr(8, text.size() - 9));
  }
  if (dir != nullptr) closedir(dir);
  return inodes;
}

// "0100007F:1F90": words of the address as the machine stores them, in hexadecimal, and the port.
Listener ReadAddress(const std::string& text, bool is_v6) {
  Listener listener;
  listener.is_v6 = is_v6;
  const size_t colon = text.find(':');
  for (size_t i = 0; i + 8 <= colon; i += 8) {
    const auto word = static_cast<uint32_t>(std::stoul(text.substr(i, 8), nullptr, 16));
    std::array<char, 4> bytes{};
    std::memcpy(bytes.data(), &word, bytes.size());
    listener.address.append(bytes.data(), bytes.size());
  }
  listener.port = static_cast<unsigned short>(std::stoul(text.substr(colon + 1), nullptr, 16));
  return listener;
}

void AddTcp(pid_t pid, bool is_v6, const std::set<std::string>& inodes,
            std::vector<Listener>& found) {
  std::ifstream file(fmt::format("/proc/{}/net/{}", pid, is_v6 ? "tcp6" : "tcp"));
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> uid >>
        timeout >> inode;
    if (state == kListening && inodes.count(inode) != 0) found.push_back(ReadAddress(local, is_v6));
  }
}

void AddUnix(pid_t pid, const std::set<std::string>& inodes, std::vector<Listener>& found) {
  std::ifstream file(fmt::format("/proc/{}/net/unix", pid));
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, path;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> path;
    constexpr unsigned long kAccepting = 0x10000;
    if (path.empty() || inodes.count(inode) == 0) continue;
    if ((std::stoul(flags, nullptr, 16) & kAccepting) == 0) continue;
    Listener listener;
    listener.is_tcp = false;
    listener.address = path;
    if (path[0] == '@') listener.address[0] = '\0';
    found.push_back(listener);
  }
}

socklen_t Fill(const Listener& listener, sockaddr_storage& storage) {
  std::memset(&storage, 0, sizeof(storage));
  if (!listener.is_tcp) {
    auto& local = reinterpret_cast<sockaddr_un&>(storage);
    local.sun_family = AF_UNIX;
    const size_t length = std::min(listener.address.size(), sizeof(local.sun_path));
    std::memcpy(local.sun_path, listener.address.data(), length);
    return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  }
  if (listener.is_v6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(storage);
    v6.sin6_family = AF_INET6;
    v6.sin6_port = htons(listener.port);
    std::memcpy(&v6.sin6_addr, listener.address.data(), sizeof(v6.sin6_addr));
    if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) v6.sin6_addr = in6addr_loopback;
    return sizeof(v6);
  }
  auto& v4 = reinterpret_cast<sockaddr_in&>(storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(listener.port);
  std::memcpy(&v4.sin_addr, listener.address.data(), sizeof(v4.sin_addr));
  if (v4.sin_addr.s_addr == INADDR_ANY) v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return sizeof(v4);
}

void Say(int fd, const std::string& bytes) {
  // What the other end no longer takes is its right to refuse.
  if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

}  // namespace

std::vector<Listener> ListenersOf(pid_t pid) {
  std::vector<Listener> found;
  const std::set<std::string> inodes = SocketInodes(pid);
  AddTcp(pid, false, inodes, found);
  AddTcp(pid, true, inodes, found);
  AddUnix(pid, inodes, found);
  return found;
}

Attack::~Attack() {
  for (const int fd : open_) close(fd);
}

int Attack::Connect(const Listener& listener) {
  const int domain = !listener.is_tcp ? AF_UNIX : listener.is_v6 ? AF_INET6 : AF_INET;
  // The kind of a Unix socket is not told; the other kind refuses to connect.
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET}) {
    const int fd = socket(domain, type | SOCK_CLOEXEC, 0);
    sockaddr_storage storage;
    const socklen_t length = Fill(listener, storage);
    if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&storage), length) == 0) return fd;
    if (fd >= 0) close(fd);
    if (listener.is_tcp) break;
  }
  return -1;
}

int Attack::Assault(const Listener& listener) {
  std::mt19937 random(12345);
  std::string noise(100'000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  const std::array<std::string, 6> words = {"",
                                            std::string(1, '\x16'),
                                            "GET / HTTP/1.1\r\n\r\n",
                                            std::string(4096, '\0'),
                                            std::string(4096, '\xff'),
                                            noise};
  int taken = 0;
  for (int round = 0; round < 8; ++round) {
    for (const std::string& word : words) {
      const int fd = Connect(listener);
      if (fd < 0) continue;
      ++taken;
      Say(fd, word.substr(0, word.size() >> round));
      if (round % 2 == 0)
        open_.push_back(fd);
      else
        close(fd);
    }
  }
  return taken;
}

}  // namespace tutti::testing
