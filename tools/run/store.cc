#include "run/store.h"

#include <fmt/format.h>

#include "bootstrap/job_secret.h"
#include "config/secret.h"
#include "launch/listen.h"

namespace tutti::tools {

ErasedText JobSecret(const PassedVariables& passed) {
  const auto found = passed.values.find("TUTTI_COMM_KEY");
  const std::string given =
      found != passed.values.end() ? found->second : Environment().Get("TUTTI_COMM_KEY");
  return given.empty() ? RandomSecret() : ErasedText(given);
}

Result<std::unique_ptr<elastic::StoreServer>> OpenStore(const ErasedText& secret, bool loopback,
                                                        elastic::StoreServer::OnSet on_set) {
  TUTTI_TRY(CheckSecretLength(secret, "TUTTI_COMM_KEY"));
  Status last;
  // Listens for both families where the host has IPv6.
  for (const char* text : {"[::]:0", "0.0.0.0:0"}) {
    TUTTI_ASSIGN(const SocketAddress address, ParseSocketAddress(loopback ? "127.0.0.1:0" : text));
    auto store = elastic::StoreServer::Create(address, elastic::StoreKey(secret), on_set);
    if (store.ok()) return store;
    last = std::move(store).status();
  }
  return last;
}

std::string StoreAddresses(const elastic::StoreServer& store, bool here) {
  std::string addresses;
  for (const std::string& address :
       here ? std::vector<std::string>{"127.0.0.1"} : launch::OwnAddresses()) {
    const bool v6 = address.find(':') != std::string::npos;
    addresses += fmt::format("{}{}:{}", addresses.empty() ? "" : ",",
                             v6 ? fmt::format("[{}]", address) : address, store.port());
  }
  return addresses;
}

}  // namespace tutti::tools
