// The config of a communicator: checked field by field, and read into its handle.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <limits>

#include "api/making.h"
#include "nccl.h"

namespace tutti::api {
namespace {

// The most that NCCL_MAX_CTAS allows.
constexpr int64_t kMostBlocks = 128;

// Longer than the config of any release to come. A struct with a greater size is no config.
constexpr size_t kLongestConfig = 4096;

// As TUTTI_TIMEOUT_S allows.
constexpr double kLongestTimeoutS = 1e7;
// As TUTTI_INIT_TIMEOUT_S allows.
constexpr double kLongestInitTimeoutS = 1e6;

struct FieldRange {
  const char* name;
  int ncclConfig_t::*field;
  int least, most;
};

// The values that nccl.h allows for each field. Host ranks check also the fields that they then
// ignore, so that a program finds its mistake here and not on the machine with GPUs.
constexpr int kAny = std::numeric_limits<int>::max();
constexpr FieldRange kFieldRanges[] = {
    {"blocking", &ncclConfig_t::blocking, 0, 1},
    {"cgaClusterSize", &ncclConfig_t::cgaClusterSize, 0, 8},
    {"minCTAs", &ncclConfig_t::minCTAs, 1, kAny},
    {"maxCTAs", &ncclConfig_t::maxCTAs, 1, kAny},
    {"splitShare", &ncclConfig_t::splitShare, 0, 1},
    {"collnetEnable", &ncclConfig_t::collnetEnable, 0, 1},
    {"CTAPolicy", &ncclConfig_t::CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO},
    {"shrinkShare", &ncclConfig_t::shrinkShare, 0, 1},
    {"nvlsCTAs", &ncclConfig_t::nvlsCTAs, 0, kAny},
    {"nChannelsPerNetPeer", &ncclConfig_t::nChannelsPerNetPeer, 1, kAny},
    {"nvlinkCentricSched", &ncclConfig_t::nvlinkCentricSched, 0, 1},
    {"graphUsageMode", &ncclConfig_t::graphUsageMode, 0, 2},
    {"numRmaCtx", &ncclConfig_t::numRmaCtx, 0, kAny},
    {"maxP2pPeers", &ncclConfig_t::maxP2pPeers, 0, kAny},
    {"graphStreamOrdering", &ncclConfig_t::graphStreamOrdering, 0, 1},
    {"launchOrderImplicit", &ncclConfig_t::launchOrderImplicit, 0, 1},
    {"numRmaSig", &ncclConfig_t::numRmaSig, 0, kAny},
    {"rmaEagerInit", &ncclConfig_t::rmaEagerInit, 0, 1},
    {"hostCftMode", &ncclConfig_t::hostCftMode, ncclHostCftEnable, ncclHostCftFallback},
    {"nvlsHostMode", &ncclConfig_t::nvlsHostMode, 0, kAny},
};

Status CheckConfig(const ncclConfig_t& config) {
  for (const FieldRange& range : kFieldRanges) {
    const int value = config.*range.field;
    if (value == NCCL_CONFIG_UNDEF_INT || (value >= range.least && value <= range.most)) continue;
    if (range.most == kAny)
      return InvalidArgument("config.{} is {}, but must be at least {}", range.name, value,
                             range.least);
    return InvalidArgument("config.{} is {}, but must be from {} to {}", range.name, value,
                           range.least, range.most);
  }
  if (config.maxCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs < config.minCTAs)
    return InvalidArgument("config.maxCTAs is {}, but must be no less than minCTAs, {}",
                           config.maxCTAs, config.minCTAs);
  const int channels = config.nChannelsPerNetPeer;
  if (channels != NCCL_CONFIG_UNDEF_INT && !std::has_single_bit(static_cast<unsigned>(channels)))
    return InvalidArgument("config.nChannelsPerNetPeer is {}, but must be a power of two",
                           channels);
  return Status::Ok();
}

}  // namespace

// Callers built against an older NCCL pass a shorter struct: fields past its `size` keep their
// defaults.
Status ReadConfig(const ncclConfig_t* config, ncclComm& handle) {
  ncclConfig_t full = NCCL_CONFIG_INITIALIZER;
  if (config != nullptr) {
    if (config->magic != full.magic)
      return InvalidArgument("the config was not made with NCCL_CONFIG_INITIALIZER");
    if (config->size < offsetof(ncclConfig_t, cgaClusterSize) || config->size > kLongestConfig)
      return InvalidArgument("the config says that it is {} bytes long, which no release's is",
                             config->size);
    std::memcpy(&full, config, std::min(config->size, sizeof(full)));
  }
  TUTTI_TRY(CheckConfig(full));
  // The environment has the last word.
  if (full.blocking != NCCL_CONFIG_UNDEF_INT && handle.settings.comm_blocking < 0)
    handle.blocking = full.blocking == 1;
  // NCCL_MIN_CTAS and NCCL_MAX_CTAS in the environment also override the config.
  Settings& settings = handle.settings;
  if (full.minCTAs != NCCL_CONFIG_UNDEF_INT && settings.min_ctas == 0)
    settings.min_ctas = std::min<int64_t>(full.minCTAs, kMostBlocks);
  if (full.maxCTAs != NCCL_CONFIG_UNDEF_INT && settings.max_ctas == 0)
    settings.max_ctas = std::min<int64_t>(full.maxCTAs, kMostBlocks);
  if (full.commName != nullptr) handle.name = full.commName;
  if (full.netName != nullptr) handle.settings.net = full.netName;
  return Status::Ok();
}

Status CheckTimeout(const char* name, double seconds) {
  if (seconds >= 0 && seconds <= kLongestTimeoutS) return Status::Ok();
  return InvalidArgument("{} is {}, but must be from 0 to {}", name, seconds, kLongestTimeoutS);
}

Result<tuttiConfig_t> ReadTuttiConfig(const tuttiConfig_t* config) {
  tuttiConfig_t full = TUTTI_CONFIG_INITIALIZER;
  if (config == nullptr) return full;
  if (config->magic != full.magic)
    return InvalidArgument("the config was not made with TUTTI_CONFIG_INITIALIZER");
  if (config->size < offsetof(tuttiConfig_t, device) || config->size > kLongestConfig)
    return InvalidArgument("the config says that it is {} bytes long, which no release's is",
                           config->size);
  std::memcpy(&full, config, std::min(config->size, sizeof(full)));
  const int deterministic = full.deterministic;
  if (deterministic != NCCL_CONFIG_UNDEF_INT && deterministic != 0 && deterministic != 1)
    return InvalidArgument("config.deterministic is {}, but must be from 0 to 1", deterministic);
  TUTTI_TRY(CheckTimeout("config.timeoutSeconds", full.timeoutSeconds));
  if (!(full.initTimeoutSeconds >= 0 && full.initTimeoutSeconds <= kLongestInitTimeoutS))
    return InvalidArgument("config.initTimeoutSeconds is {}, but must be from 0 to {}",
                           full.initTimeoutSeconds, kLongestInitTimeoutS);
  return full;
}

}  // namespace tutti::api
