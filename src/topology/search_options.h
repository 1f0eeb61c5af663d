#pragma once

// Lists what the search (topology/search.h) tries, before it walks the machine: which kinds of
// path, which pattern, and which bandwidths. Pure functions.

#include <span>
#include <vector>

#include "topology/search.h"
#include "topology/search_hops.h"
#include "topology/search_walk.h"

namespace tutti::topology {

// Describes one way to search: the kinds of path that may be used, the pattern, and what finding
// something that way is worth against the same bandwidth found another way.
struct Option {
  Trial trial;
  double weight = 1;
};

// Returns the most that one channel is asked to carry: a channel is one block of a kernel, which
// moves no more.
Kbps MostPerChannel(const Graph& graph, std::span<const NodeIndex> devices);

// Returns all options, the one of highest weight first.
std::vector<Option> ListOptions(const HopTable& table, const Demand& demand);

// Returns the bandwidths at which another hop begins to fit on some link: what the links have,
// divided by what a few hops together take. Between two of them nothing changes, so no others need
// a try.
std::vector<Kbps> ListBandwidths(const HopTable& table, const Demand& demand, Kbps most_per_channel,
                                 const Trial& trial);

}  // namespace tutti::topology
