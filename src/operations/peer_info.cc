#include "operations/peer_info.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/erased.h"
#include "base/hash.h"
#include "base/log.h"
#include "bootstrap/job_secret.h"
#include "nccl.h"
#include "sys/host.h"
#include "topology/detect.h"

namespace tutti {
namespace {

// Far above the number of any node.
constexpr int32_t kHighestNuma = 1023;
constexpr int32_t kMostMultiprocessors = 4096;  // far above any GPU's

// A character that appears in no valid value.
constexpr char kBetweenSettings = '|';

// Returns, as words, the settings from which every rank must compute the same plan. Settings with
// their defaults are left out.
std::string SharedSettings(const Settings& s) {
  const Settings usual;
  std::string text;
  const auto add = [&](std::string_view name, const auto& value, const auto& default_value) {
    if (value != default_value) text += fmt::format("{}={}{}", name, value, kBetweenSettings);
  };
  const auto add_flag = [&](std::string_view name, bool value, bool default_value) {
    add(name, value ? 1 : 0, default_value ? 1 : 0);
  };
  add("NCCL_ALGO", s.algo, usual.algo);
  add("NCCL_PROTO", s.proto, usual.proto);
  add("NCCL_BUFFSIZE", s.buffsize, usual.buffsize);
  add_flag("TUTTI_DETERMINISTIC", s.deterministic, usual.deterministic);
  add_flag("TUTTI_CHECKSUM", s.checksum, usual.checksum);
  std::string encrypt = s.encrypt ? "1" : "0";
  if (s.encrypt && !s.encryption_key.empty()) {
    // Distinguishes keys without showing them.
    const Key check = WithSecret(Key{}, s.encryption_key, "which key");
    encrypt +=
        fmt::format(" (key {:02x}{:02x}{:02x}{:02x})", check[0], check[1], check[2], check[3]);
  }
  add("TUTTI_ENCRYPT", encrypt, std::string("0"));
  add("TUTTI_GPU_CHANNELS", s.gpu_channels, usual.gpu_channels);
  add("TUTTI_GPU_WINDOW", s.gpu_window, usual.gpu_window);
  add("NCCL_MIN_NCHANNELS", s.min_nchannels, usual.min_nchannels);
  add("NCCL_MAX_NCHANNELS", s.max_nchannels, usual.max_nchannels);
  add("NCCL_MIN_CTAS", s.min_ctas, usual.min_ctas);
  add("NCCL_MAX_CTAS", s.max_ctas, usual.max_ctas);
  add("TUTTI_GPU_TUNE", s.gpu_tune, usual.gpu_tune);
  add_flag("NCCL_WIN_ENABLE", s.win_enable, usual.win_enable);
  add("NCCL_WIN_STRIDE", s.win_stride, usual.win_stride);
  add("NCCL_LSA_TEAM_SIZE", s.lsa_team_size, usual.lsa_team_size);
  add_flag("NCCL_GIN_ENABLE", s.gin_enable, usual.gin_enable);
  add("NCCL_GIN_TYPE", s.gin_type, usual.gin_type);
  add("NCCL_GIN_PROXY_QUEUE_SIZE", s.gin_proxy_queue_size, usual.gin_proxy_queue_size);
  add("NCCL_GIN_GDAKI_QP_DEPTH", s.gin_queue_depth, usual.gin_queue_depth);
  add("NCCL_GIN_GDAKI_NIC_HANDLER", s.gin_nic_handler, usual.gin_nic_handler);
  return text;
}

// Splits the text of SharedSettings into words.
std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(kBetweenSettings), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// Returns the words of `text` that are not in `other`.
std::string WordsOnlyIn(std::string_view text, std::string_view other) {
  const std::vector<std::string_view> others = Words(other);
  std::vector<std::string_view> only;
  for (const std::string_view word : Words(text))
    if (std::find(others.begin(), others.end(), word) == others.end()) only.push_back(word);
  return fmt::format("{}", fmt::join(only, " "));
}

// The hash includes the machine, whatever NCCL_HOSTID and network namespaces say of the host: all
// processes of a machine share its processors.
uint64_t CpuSetHash() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) CPU_ZERO(&set);
  const std::string boot = BootId();
  return Fnv1a::Of(fmt::format("{} {}", boot.empty() ? HostName() : boot,
                               std::string_view(reinterpret_cast<const char*>(&set), sizeof(set))));
}

template <size_t kSize>
void CopyText(char (&target)[kSize], std::string_view text) {
  std::memcpy(target, text.data(), std::min(text.size(), kSize - 1));
}

template <size_t kSize>
std::string_view TextOf(const char (&field)[kSize]) {
  return {field, strnlen(field, kSize)};
}

// Replaces control characters and characters that JSON would escape.
template <size_t kSize>
void MakeTextPrintable(char (&field)[kSize]) {
  field[kSize - 1] = '\0';
  for (char* at = field; *at != '\0'; ++at)
    if (*at < ' ' || *at > '~' || *at == '"' || *at == '\\') *at = '?';
}

}  // namespace

void MakePrintable(PeerInfo& peer) {
  MakeTextPrintable(peer.host);
  MakeTextPrintable(peer.fd_server);
  MakeTextPrintable(peer.settings);
  if (peer.numa < 0 || peer.numa > kHighestNuma) peer.numa = -1;
  peer.multiprocessors = std::clamp(peer.multiprocessors, 0, kMostMultiprocessors);
}

PeerInfo DescribeSelf(const Settings& settings) {
  PeerInfo info;
  info.version = NCCL_VERSION_CODE;
  info.protocol = kPeerProtocol;
  const std::string shared = SharedSettings(settings);
  info.settings_hash = Fnv1a::Of(shared);
  CopyText(info.settings, shared);
  info.host_hash = HostHash(settings.hostid);
  info.pid = getpid();
  info.cpus = UsableCpuCount();
  info.cpu_set = CpuSetHash();
  info.numa = topology::CurrentNuma();
  info.shm_disabled = settings.shm_disable;
  info.p2p_disabled =
      settings.p2p_disable || settings.p2p_level == "LOC" || settings.p2p_level == "0";
  info.cumem_disabled = settings.cumem_enable == 0;
  info.multi_rank_gpu = settings.multi_rank_gpu;
  info.pull_disabled = settings.cma_disable || settings.p2p_disable;
  CopyText(info.host, HostName());
  return info;
}

double FewestCpusOfARank(std::span<const PeerInfo> peers) {
  std::map<uint64_t, int> ranks;
  for (const PeerInfo& peer : peers) ++ranks[peer.cpu_set];
  double fewest = peers[0].cpus;
  for (const PeerInfo& peer : peers)
    fewest = std::min(fewest, static_cast<double>(peer.cpus) / ranks[peer.cpu_set]);
  return fewest;
}

int HostCount(std::span<const PeerInfo> peers) {
  std::set<uint64_t> hosts;
  for (const PeerInfo& peer : peers) hosts.insert(peer.host_hash);
  return static_cast<int>(hosts.size());
}

bool SameProcess(const PeerInfo& a, const PeerInfo& b) {
  return a.host_hash == b.host_hash && a.pid == b.pid && TextOf(a.fd_server) == TextOf(b.fd_server);
}

std::string_view FdServerOf(const PeerInfo& peer) { return TextOf(peer.fd_server); }

std::string RankName(int rank, const PeerInfo& peer) {
  return fmt::format("rank {} (host {}, pid {})", rank, TextOf(peer.host), peer.pid);
}

Status CheckPeers(std::span<const PeerInfo> peers) {
  const auto name = [&](size_t rank) { return RankName(static_cast<int>(rank), peers[rank]); };
  std::map<std::pair<uint64_t, uint64_t>, size_t> devices;
  for (size_t r = 0; r < peers.size(); ++r) {
    const PeerInfo& peer = peers[r];
    if (peer.version != peers[0].version || peer.protocol != peers[0].protocol) {
      return InvalidUsage(
          "{} runs version {} (protocol {}) and {} runs version {} (protocol {}): "
          "all ranks must load the same library",
          name(0), peers[0].version, peers[0].protocol, name(r), peer.version, peer.protocol);
    }
    if (peer.settings_hash != peers[0].settings_hash) {
      const std::string_view first = TextOf(peers[0].settings), other = TextOf(peer.settings);
      const std::string of_first = WordsOnlyIn(first, other), of_other = WordsOnlyIn(other, first);
      if (of_first.empty() && of_other.empty())
        return InvalidUsage(
            "{} and {} have other settings that must be the same on all ranks; they are too long "
            "to be shown",
            name(0), name(r));
      const auto shown = [](const std::string& words) {
        return words.empty() ? "the defaults" : words;
      };
      return InvalidUsage("{} has {} and {} has {}: settings that must be the same on all ranks",
                          name(0), shown(of_first), name(r), shown(of_other));
    }
    if ((peer.device == 0) != (peers[0].device == 0)) {
      const bool first = peer.device == 0;
      return InvalidUsage(
          "{} has a GPU and {} has none: all ranks of a communicator are of one kind "
          "(TUTTI_BACKEND=host makes all of them host ranks)",
          name(first ? 0 : r), name(first ? r : 0));
    }
    if (peer.device == 0) continue;
    const auto [other, fresh] = devices.try_emplace({peer.host_hash, peer.device_identity}, r);
    if (!fresh && !(peers[other->second].multi_rank_gpu && peer.multi_rank_gpu)) {
      return InvalidUsage(
          "{} and {} use the same GPU ({:x}): give each rank its own, with "
          "CUDA_VISIBLE_DEVICES or cudaSetDevice(local rank), or set "
          "NCCL_MULTI_RANK_GPU_ENABLE=1 on both",
          name(other->second), name(r), peer.device);
    }
  }
  return Status::Ok();
}

void ShareMultiprocessors(std::span<PeerInfo> peers) {
  std::map<uint64_t, int> ranks;
  for (const PeerInfo& peer : peers) ++ranks[peer.device_identity];
  for (PeerInfo& peer : peers)
    if (peer.device != 0)
      peer.multiprocessors = std::max(1, peer.multiprocessors / ranks[peer.device_identity]);
}

}  // namespace tutti
