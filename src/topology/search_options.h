#pragma once

// Lists the trials of the search (topology/search.h), before the search walks the machine: kinds of
// path, patterns, and bandwidths. Pure functions.

#include <span>
#include <vector>

#include "topology/search.h"
#include "topology/search_hops.h"
#include "topology/search_walk.h"

namespace tutti::topology {

// Describes a way to search: the kinds of path that may be used, the pattern, and a weight. The
// weight compares bandwidths that were found in different ways.
struct Option {
  Trial trial;
  double weight = 1;
};

// Returns the bound of a channel's bandwidth: a channel is a block of a kernel, and a block moves
// no more.
Kbps MostPerChannel(const Graph& graph, std::span<const NodeIndex> devices);

// Returns all options, with the highest weight first.
std::vector<Option> ListOptions(const HopTable& table, const Demand& demand);

// Returns the bandwidths at which another hop begins to fit on some link: the link's bandwidth
// divided by the load of a few hops together. Nothing changes between two such bandwidths, hence no
// bandwidth between them is tried.
std::vector<Kbps> ListBandwidths(const HopTable& table, const Demand& demand, Kbps most_per_channel,
                                 const Trial& trial);

}  // namespace tutti::topology
