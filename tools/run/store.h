#pragma once

// The store of the launcher (elastic/store.h): workers of elastic jobs get their ranks by the
// store, and ranks on several hosts meet by the store. Any thread.

#include <memory>
#include <string>

#include "base/erased.h"
#include "base/status.h"
#include "elastic/store.h"
#include "run/remote.h"

namespace tutti::tools {

// Returns the secret of a new job: the user's TUTTI_COMM_KEY, by --env or in the environment of
// this process, or else a random text.
ErasedText JobSecret(const PassedVariables& passed);

// Serves a store for holders of `secret`: on loopback, or on all addresses of this host.
// InvalidUsage for a secret that is too short.
Result<std::unique_ptr<elastic::StoreServer>> OpenStore(const ErasedText& secret, bool loopback,
                                                        elastic::StoreServer::OnSet on_set);

// Returns "host:port,…" for processes of this host (`here`) or of other hosts.
std::string StoreAddresses(const elastic::StoreServer& store, bool here);

}  // namespace tutti::tools
