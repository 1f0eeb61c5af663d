#pragma once

// The memory and ports of cards, for gin/direct.h and for kinds of cards. Tests include this header
// together with kernels, in which the name `cuda` must not mean tutti::cuda.

#include <cstdint>
#include <string>

namespace tutti {

// Memory that a card reaches. The registration ends with the object; the caller owns the memory.
class CardMemory {
 public:
  virtual ~CardMemory() = default;
  // The keys, big endian as entries have them.
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
};

// The order in which a card writes memory: any order within a put, or the order of the put, for
// words that kernels wait for.
enum class CardOrdering : uint8_t { kRelaxed, kStrict };

// A port of a card that kernels could drive, with the facts that the topology asks for.
struct CardPort {
  std::string name;
  std::string pci_path;  // the card's folder in sysfs; empty where the card is on no PCI bus
  uint32_t speed_mbps = 0;
  int number = 1;
  uint64_t guid = 0;
};

}  // namespace tutti
