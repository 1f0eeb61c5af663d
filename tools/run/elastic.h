#pragma once

// Starts, watches and ends the workers of an elastic job, which goes on while workers fail, hosts
// leave and hosts come. Membership decides; the functions here carry out its decisions.
// docs/elastic.md describes how workers and launcher talk.
//
// Workers of this host are child processes. Workers of another host are started by ssh, whose input
// brings them their variables, the job's key among them (remote.h).

#include <string>
#include <vector>

#include "run/membership.h"
#include "run/remote.h"

namespace tutti::tools {

struct ElasticOptions {
  MembershipOptions membership;
  std::vector<elastic::HostSlots> hosts;  // in use without a script
  std::string discovery_script;
  double discovery_interval_s = 1;
  int default_slots = 1;
  RemoteOptions remote;
  bool tag = false;
  double grace_s = 5;
  std::vector<std::string> command;
};

// Returns the exit status: 0 when the job came to its end, otherwise the status of a worker that
// failed.
int RunElastic(const ElasticOptions& options);

}  // namespace tutti::tools
