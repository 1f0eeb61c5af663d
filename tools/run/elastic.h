#pragma once

// Starts, watches and ends the workers of an elastic job: one that goes on while workers fail,
// hosts leave and hosts come. What is to be done is decided by elastic::Membership; this is its
// hands. docs/elastic.md says how workers and launcher talk.
//
// Workers of this host are processes of this one. Those of another are started by ssh, which gets
// their variables, the job's key among them, over its input (remote.h).

#include <string>
#include <vector>

#include "elastic/membership.h"
#include "run/remote.h"

namespace tutti::tools {

struct ElasticOptions {
  elastic::MembershipOptions membership;
  std::vector<elastic::HostSlots> hosts;  // without a script
  std::string discovery_script;
  double discovery_interval_s = 1;
  int default_slots = 1;
  std::string ssh = "ssh -o BatchMode=yes";  // words; host and command line follow
  PassedVariables passed;
  bool tag = false;
  double grace_s = 5;
  std::vector<std::string> command;
};

// The exit status: 0 when the job came to its end; else that of a worker that failed.
int RunElastic(const ElasticOptions& options);

// Whether workers of the host are processes of this one.
bool IsThisHost(const std::string& host);

}  // namespace tutti::tools
