#include "launch/places.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace tutti::launch {
namespace {

// Numbers keys in the order in which they first appear.
template <class Key>
class Numbering {
 public:
  int Of(const Key& key) {
    return numbers_.try_emplace(key, static_cast<int>(numbers_.size())).first->second;
  }

 private:
  std::map<Key, int> numbers_;
};

std::vector<Place> Counted(const std::vector<Residence>& residences) {
  Numbering<std::string> machines;
  std::map<int, int> seen;
  std::vector<Place> places;
  for (const Residence& residence : residences) {
    Place place;
    place.machine = machines.Of(residence.machine);
    place.local_rank = seen[place.machine]++;
    places.push_back(place);
  }
  return places;
}

// Returns nothing where the launcher's numbers are not complete.
std::optional<std::vector<Place>> AsTold(const std::vector<Residence>& residences) {
  // Number of ranks that were told each local rank, by machine name and local size.
  std::map<std::pair<std::string, int>, std::map<int, int>> told;
  Numbering<std::tuple<std::string, int, int>> machines;
  std::vector<Place> places;
  for (const Residence& residence : residences) {
    const int size = residence.local_size;
    const int rank = residence.local_rank;
    if (rank < 0 || rank >= size) return std::nullopt;
    // The n-th rank with the same number lives on the n-th machine of the same name.
    const int part = told[{residence.machine, size}][rank]++;
    Place place;
    place.machine = machines.Of({residence.machine, size, part});
    place.local_rank = rank;
    places.push_back(place);
  }
  for (const auto& [name, times] : told) {
    const auto as_often = [first = times.begin()->second](const auto& entry) {
      return entry.second == first;
    };
    if (times.size() != static_cast<size_t>(name.second) ||
        !std::all_of(times.begin(), times.end(), as_often)) {
      return std::nullopt;
    }
  }
  return places;
}

}  // namespace

std::vector<Place> SettlePlaces(const std::vector<Residence>& residences) {
  std::optional<std::vector<Place>> told = AsTold(residences);
  std::vector<Place> places = told ? *std::move(told) : Counted(residences);
  // Both ways make complete places.
  [[maybe_unused]] const Status completed = CompletePlaces(&places);
  return places;
}

Status CompletePlaces(std::vector<Place>* places) {
  const size_t num_ranks = places->size();
  // Local ranks, by machine.
  std::vector<std::vector<int>> local_ranks;
  for (const Place& place : *places) {
    const auto machine = static_cast<size_t>(place.machine);
    if (place.machine < 0 || machine > local_ranks.size() || place.local_rank < 0 ||
        static_cast<size_t>(place.local_rank) >= num_ranks) {
      return RemoteError("the places of the ranks make no sense");
    }
    if (machine == local_ranks.size()) local_ranks.emplace_back();
    local_ranks[machine].push_back(place.local_rank);
  }
  for (std::vector<int>& ranks : local_ranks) {
    std::sort(ranks.begin(), ranks.end());
    for (size_t i = 0; i < ranks.size(); ++i) {
      if (ranks[i] != static_cast<int>(i)) return RemoteError("the local ranks make no sense");
    }
  }
  // For each local rank: the number of machines before a given machine that have the local rank.
  // Machines are visited in order, hence one running count for each local rank is enough.
  std::vector<int> machines_with(num_ranks, 0);
  std::vector<std::vector<int>> cross_ranks(local_ranks.size());
  for (size_t machine = 0; machine < local_ranks.size(); ++machine) {
    for (size_t i = 0; i < local_ranks[machine].size(); ++i) {
      cross_ranks[machine].push_back(machines_with[i]++);
    }
  }
  for (Place& place : *places) {
    const auto machine = static_cast<size_t>(place.machine);
    const auto local_rank = static_cast<size_t>(place.local_rank);
    place.local_size = static_cast<int>(local_ranks[machine].size());
    place.cross_rank = cross_ranks[machine][local_rank];
    place.cross_size = machines_with[local_rank];
  }
  return Status::Ok();
}

}  // namespace tutti::launch
