#include "operations/networks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/erased.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "bootstrap/auth.h"
#include "bootstrap/job_secret.h"
#include "config/plugin_file.h"
#include "transport/net/plugin/plugin_net.h"
#include "transport/net/plugin/rma_plugin.h"
#include "transport/net/socket/socket_net.h"
#include "transport/net/verbs/verbs_net.h"

namespace tutti {
namespace {

constexpr const char* kSocket = "Socket";
constexpr const char* kVerbs = "IB";

// The most networks that a rank offers.
constexpr size_t kMostOffers = 6;

// Holds a rank's offer to its peers: hashes of the names of the networks that the rank can use, in
// its order (0: no more), and a random number. The number of rank 0 becomes the communicator's
// number for plugins.
struct Offer {
  std::array<uint64_t, kMostOffers> names = {};
  uint64_t number = 0;
};

// Holds a network that this rank can use: an open network, or a plugin. A plugin is initialised
// again once the communicator's number is known.
struct Candidate {
  std::string name;
  std::unique_ptr<Net> net;
  std::shared_ptr<PluginLibrary> plugin;
};

// Returns a number for a name, in upper or lower case; never 0.
uint64_t HashOfName(std::string_view name) {
  Fnv1a hash;
  for (const char c : name) {
    hash.Add(static_cast<uint8_t>(tolower(static_cast<unsigned char>(c))));
  }
  return hash.hash() | 1;
}

// Opens the plugins of the settings. A missing default library is not logged; a missing library
// that the user names is.
std::vector<std::shared_ptr<PluginLibrary>> OpenPlugins(const Settings& settings) {
  std::vector<std::shared_ptr<PluginLibrary>> plugins;
  for (const std::string& name : PluginNames(settings.net_plugin)) {
    Result<std::shared_ptr<PluginLibrary>> library = PluginLibrary::Open(name);
    if (library.ok()) {
      plugins.push_back(std::move(library).value());
    } else if (name.empty()) {
      TUTTI_INFO(kLogInit | kLogNet, "{}", library.status().message());
    } else {
      TUTTI_WARN("{}", library.status().message());
    }
  }
  return plugins;
}

// Returns the address of this host by which the ranks have met: the address of the route to the
// root, at which Bootstrap::Create listens as well. Not valid where that says nothing about other
// hosts.
SocketAddress WhereRanksMet(const Bootstrap& bootstrap) {
  const SocketAddress& root = bootstrap.key_holder().root;
  if (!root.valid() || root.IsLoopback()) return {};
  const Result<SocketAddress> address = SourceAddressFor(root);
  return address.ok() && !address->IsLoopback() ? *address : SocketAddress();
}

// Holds the networks that this rank can use, and the reasons against all other networks.
class Candidates {
 public:
  // `near` is the address of this host by which the ranks have met.
  Candidates(Proxy& proxy, const Settings& settings, const Key& key, const SocketAddress& near)
      : proxy_(proxy), settings_(settings), key_(key), near_(near) {}

  void Find() {
    for (const auto& plugin : OpenPlugins(settings_)) {
      if (Admits(plugin->functions().name())) {
        Consider(plugin->functions().name(), PluginNet::Create(plugin, 0), plugin);
      }
    }
    if (Admits(kVerbs)) Consider(kVerbs, VerbsNet::Create(proxy_.loop(), key_, settings_, {}));
    if (Admits(kSocket))
      Consider(kSocket, SocketNet::Create(proxy_.loop(), key_, settings_, {.near = near_}));
  }

  std::vector<Candidate>& usable() { return usable_; }
  const std::string& refusals() const { return refusals_; }

 private:
  // Encryption leaves networks without encryption out, unless the user names the network.
  bool Admits(std::string_view name) const {
    if (usable_.size() >= kMostOffers) return false;
    if (!settings_.net.empty()) return EqualIgnoringCase(settings_.net, name);
    if (!settings_.encrypt || name == kSocket) return true;
    TUTTI_INFO(kLogInit | kLogNet, "net {} is not used: it has no encryption (TUTTI_ENCRYPT)",
               name);
    return false;
  }
  void Consider(std::string_view name, Result<std::unique_ptr<Net>> opened,
                std::shared_ptr<PluginLibrary> plugin = nullptr) {
    const Status status = opened.ok() ? opened.value()->IsViable() : opened.status();
    if (status.ok()) {
      usable_.push_back({std::string(name), plugin ? nullptr : std::move(opened).value(), plugin});
      return;
    }
    TUTTI_INFO(kLogInit | kLogNet, "net {} is not used: {}", name, status.message());
    refusals_ += fmt::format("{}{}: {}", refusals_.empty() ? "" : "; ", name, status.message());
  }

  Proxy& proxy_;
  const Settings& settings_;
  const Erased<Key> key_;
  const SocketAddress near_;
  std::vector<Candidate> usable_;
  std::string refusals_;
};

// Returns the key that both ends of a connection prove to hold, and from which encryption derives
// its keys: the job's key, which the job's secret has part in, and the key of ncclSetEncryption.
Key NetworkKey(const Key& job, const Settings& settings) {
  return WithSecret(job, settings.encryption_key, "network");
}

// Returns InvalidUsage if encryption has no secret. All ranks return the same, because the ranks of
// a communicator compare whether encryption is asked for, and with which secret (peer_info.cc).
Status CheckEncryptionHasSecret(const Settings& settings) {
  const bool has_secret = !settings.comm_key.empty() || !settings.encryption_key.empty();
  if (!settings.encrypt || has_secret) return Status::Ok();
  return InvalidUsage(
      "TUTTI_ENCRYPT is set without a secret, and a network carries data between the ranks: set "
      "TUTTI_COMM_KEY to the same text on every rank, at best 32 random bytes in hexadecimal, or "
      "call ncclSetEncryption with a key. Whoever sees the job's id could read data that only the "
      "id protects");
}

// Returns sockets for one-sided operations. Fails where encryption has no secret.
Result<std::unique_ptr<Net>> OpenSockets(Proxy& proxy, const Settings& settings,
                                         const Bootstrap& bootstrap) {
  TUTTI_TRY(CheckEncryptionHasSecret(settings));
  return SocketNet::Create(proxy.loop(), NetworkKey(bootstrap.key_holder().key, settings), settings,
                           {.near = WhereRanksMet(bootstrap)});
}

}  // namespace

Status CheckNetName(const Settings& settings) {
  const std::string& name = settings.net;
  if (name.empty() || EqualIgnoringCase(name, kSocket) || EqualIgnoringCase(name, kVerbs))
    return Status::Ok();
  for (const auto& plugin : OpenPlugins(settings)) {
    if (EqualIgnoringCase(name, plugin->functions().name())) return Status::Ok();
  }
  return InvalidUsage(
      "NCCL_NET, or the config's netName, asks for the network \"{}\"; there are {} and {}, and "
      "those of the plugins that NCCL_NET_PLUGIN names",
      name, kSocket, kVerbs);
}

Result<std::unique_ptr<Net>> OpenNet(Proxy& proxy, const Settings& settings,
                                     const JointRanks& ranks, std::shared_ptr<NetEvents> events) {
  TUTTI_TRY(CheckEncryptionHasSecret(settings));
  Candidates candidates(proxy, settings, NetworkKey(ranks.bootstrap->key_holder().key, settings),
                        WhereRanksMet(*ranks.bootstrap));
  candidates.Find();
  JointStep<Offer> step(ranks);
  step.mine().number = RandomU64();
  for (size_t i = 0; i < candidates.usable().size(); ++i) {
    step.mine().names[i] = HashOfName(candidates.usable()[i].name);
  }
  TUTTI_TRY(step.Exchange());
  const std::span<const Offer> offers = step.offers();
  // The order of rank 0 counts, because ranks may order the networks differently and must choose
  // alike.
  for (const uint64_t name : offers[0].names) {
    if (name == 0 || FirstWithout(offers, name) >= 0) continue;
    auto chosen = std::find_if(candidates.usable().begin(), candidates.usable().end(),
                               [&](const Candidate& c) { return HashOfName(c.name) == name; });
    TUTTI_INFO(kLogInit | kLogNet, "net {} carries data between hosts", chosen->name);
    if (settings.encrypt && !EqualIgnoringCase(chosen->name, kSocket)) {
      TUTTI_WARN(
          "TUTTI_ENCRYPT is set, but NCCL_NET, or the config's netName, asks for the network {}, "
          "which has no encryption: the data of rank {} travel between hosts as they are",
          chosen->name, ranks.me());
    }
    if (chosen->plugin)
      return PluginNet::Create(chosen->plugin, offers[0].number, std::move(events));
    return std::move(chosen->net);
  }
  if (candidates.usable().empty()) {
    if (!settings.net.empty()) {
      return InvalidUsage("NCCL_NET={} cannot be had: {}", settings.net, candidates.refusals());
    }
    return InvalidUsage("no network can carry data between hosts: {}", candidates.refusals());
  }
  const Candidate& first = candidates.usable().front();
  const int without = FirstWithout(offers, HashOfName(first.name));
  return InvalidUsage("the ranks have no network in common: {} does not use {}; its log says why",
                      ranks.NameOf(static_cast<size_t>(without)), first.name);
}

Operations::OneSidedNetwork ChooseOneSided(Proxy& proxy, const Settings& settings,
                                           const Bootstrap& bootstrap, std::shared_ptr<Net> net,
                                           int device) {
  Operations::OneSidedNetwork chosen = {net, device};
  if (net == nullptr || net->rma() == nullptr) {
    Result<std::unique_ptr<Net>> sockets = OpenSockets(proxy, settings, bootstrap);
    const Status status = sockets.ok() ? (*sockets)->IsViable() : sockets.status();
    TUTTI_INFO(kLogInit | kLogNet, "{} has no one-sided operations; {}",
               net != nullptr ? net->name() : "what joins the ranks",
               status.ok() ? "sockets carry them" : status.message());
    // The first device of the sockets is as good as any.
    chosen = {status.ok() ? std::shared_ptr<Net>(std::move(sockets).value()) : nullptr};
  }
  if (net == nullptr) {
    net = chosen.net;
    device = 0;
  }
  if (net == nullptr) return chosen;
  // Plugins have no encryption. Where data go over another network than sockets, the user has named
  // the network and has been warned.
  if (settings.encrypt && EqualIgnoringCase(net->name(), kSocket)) {
    if (!settings.rma_plugin.empty() || !settings.gin_plugin.empty())
      TUTTI_WARN("NCCL_RMA_PLUGIN and NCCL_GIN_PLUGIN are left out: plugins have no encryption");
    return chosen;
  }
  const std::vector<std::string>& paths = net->devices()[static_cast<size_t>(device)].pci_paths;
  chosen.groups = RmaPlugins::Find(settings, paths.empty() ? std::string() : paths.front());
  return chosen;
}

}  // namespace tutti
