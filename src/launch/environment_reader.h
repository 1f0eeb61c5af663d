#pragma once

// Reads variables one at a time, with a sentence for each malformed variable. Internal to launch.

#include <optional>
#include <string>
#include <string_view>

#include "launch/environment.h"

namespace tutti::launch {

class Reader {
 public:
  explicit Reader(const Environment& environment) : environment_(environment) {}

  bool Has(const char* name) const { return Text(name) != nullptr; }
  // Returns null for a variable that is not set or empty.
  const char* Text(const char* name) const;
  std::string TextOr(const char* name, std::string_view otherwise) const;
  Result<int64_t> Number(const char* name, int64_t lowest, int64_t highest) const;
  // Returns -1 for a variable that is not set or empty.
  Result<int> NumberIfSet(const char* name, int lowest, int highest) const;
  Result<uint16_t> Port(const char* name) const;

 private:
  const Environment& environment_;
};

// Reads "host:port" or "[v6]:port".
Result<Endpoint> ReadEndpoint(std::string_view name, std::string_view text);

// Returns the addresses of rank 0 that the user gave; empty where the user gave none.
Result<std::vector<Endpoint>> ReadGivenEndpoints(const Reader& reader);

// Returns the addresses of the store of `tutti run`; empty where there is none.
Result<std::vector<Endpoint>> ReadStoreEndpoints(const Reader& reader);

// Returns how long ranks wait for one another, in seconds.
Result<double> ReadTimeout(const Reader& reader);

}  // namespace tutti::launch
