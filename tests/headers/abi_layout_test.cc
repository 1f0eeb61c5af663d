// The binary interface in numbers: a program compiled against NVIDIA's nccl.h passes these structs
// and values to our library as they are. Compiling this file is the test. It also compiles against
// NVIDIA's header (put its folder first in the include path); what later releases changed is
// asserted for our version only.

#include <nccl.h>

#include <cstddef>

static_assert(sizeof(void*) == 8, "the numbers below are for 64-bit machines");

static_assert(sizeof(ncclUniqueId) == 128 && alignof(ncclUniqueId) == 1);
static_assert(NCCL_UNIQUE_ID_BYTES == 128);

// Results.
static_assert(sizeof(ncclResult_t) == 4);
static_assert(ncclSuccess == 0 && ncclUnhandledCudaError == 1 && ncclSystemError == 2);
static_assert(ncclInternalError == 3 && ncclInvalidArgument == 4 && ncclInvalidUsage == 5);
static_assert(ncclRemoteError == 6 && ncclInProgress == 7 && ncclTimeout == 8);
static_assert(ncclNumResults == 9);

// Config: every field where NCCL has it.
#define AT(field, offset) static_assert(offsetof(ncclConfig_t, field) == (offset))
AT(size, 0);
AT(magic, 8);
AT(version, 12);
AT(blocking, 16);
AT(cgaClusterSize, 20);
AT(minCTAs, 24);
AT(maxCTAs, 28);
AT(netName, 32);
AT(splitShare, 40);
AT(trafficClass, 44);
AT(commName, 48);
AT(collnetEnable, 56);
AT(CTAPolicy, 60);
AT(shrinkShare, 64);
AT(nvlsCTAs, 68);
AT(nChannelsPerNetPeer, 72);
AT(nvlinkCentricSched, 76);
AT(graphUsageMode, 80);
AT(numRmaCtx, 84);
AT(maxP2pPeers, 88);
AT(graphStreamOrdering, 92);
#if NCCL_VERSION_CODE >= 23203 || defined(TUTTI_NO_CUDA)
AT(launchOrderImplicit, 96);
AT(numRmaSig, 100);
AT(rmaEagerInit, 104);
AT(hostCftMode, 108);
AT(nvlsHostMode, 112);
static_assert(sizeof(ncclConfig_t) == 120);
static_assert(ncclHostCftEnable == 1 && ncclHostCftDisable == 2 && ncclHostCftFallback == 3);
static_assert(ncclHostCftDefault == NCCL_CONFIG_UNDEF_INT);
static_assert(ncclNvlsHostModeDefault == NCCL_CONFIG_UNDEF_INT && ncclNvlsHostModeEnable == 0);
static_assert(ncclNvlsHostModeDisableTransport == 1);
static_assert(ncclNvlsHostModeDisableSymmetricMultimem == 2);
static_assert(ncclNvlsHostModeDisable == 0x7fffffff);
#endif
#undef AT
static_assert(alignof(ncclConfig_t) == 8);
static_assert(NCCL_API_MAGIC == 0xcafebeef);
static_assert(NCCL_CONFIG_UNDEF_INT == -2147483647 - 1);
static_assert(NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH) == NCCL_VERSION_CODE);
static_assert(NCCL_VERSION(2, 7, 8) == 2708 && NCCL_VERSION(2, 9, 6) == 20906);

// The initializers: an unset field must be told from a set one.
constexpr ncclConfig_t kConfig = NCCL_CONFIG_INITIALIZER;
static_assert(kConfig.size == sizeof(ncclConfig_t) && kConfig.magic == 0xcafebeef);
static_assert(kConfig.version == NCCL_VERSION_CODE);
static_assert(kConfig.blocking == NCCL_CONFIG_UNDEF_INT &&
              kConfig.maxCTAs == NCCL_CONFIG_UNDEF_INT);
static_assert(kConfig.netName == nullptr && kConfig.commName == nullptr);
static_assert(kConfig.trafficClass == NCCL_CONFIG_UNDEF_INT);
static_assert(kConfig.collnetEnable == NCCL_CONFIG_UNDEF_INT);
static_assert(kConfig.graphStreamOrdering == NCCL_CONFIG_UNDEF_INT);

constexpr ncclSimInfo_t kSimInfo = NCCL_SIM_INFO_INITIALIZER;
static_assert(sizeof(ncclSimInfo_t) == 24 && offsetof(ncclSimInfo_t, estimatedTime) == 16);
static_assert(kSimInfo.size == 24 && kSimInfo.magic == 0x74685283);
static_assert(kSimInfo.version == NCCL_VERSION_CODE && kSimInfo.estimatedTime == -1.0f);

// Types and operators.
static_assert(sizeof(ncclDataType_t) == 4);
static_assert(ncclInt8 == 0 && ncclChar == 0 && ncclUint8 == 1 && ncclInt32 == 2 && ncclInt == 2);
static_assert(ncclUint32 == 3 && ncclInt64 == 4 && ncclUint64 == 5);
static_assert(ncclFloat16 == 6 && ncclHalf == 6 && ncclFloat32 == 7 && ncclFloat == 7);
static_assert(ncclFloat64 == 8 && ncclDouble == 8 && ncclBfloat16 == 9);
static_assert(ncclFloat8e4m3 == 10 && ncclFloat8e5m2 == 11 && ncclNumTypes == 12);
static_assert(sizeof(ncclRedOp_t) == 4);
static_assert(ncclSum == 0 && ncclProd == 1 && ncclMax == 2 && ncclMin == 3 && ncclAvg == 4);
static_assert(ncclNumOps == 5 && ncclMaxRedOp == 0x7fffffff);
static_assert(ncclScalarDevice == 0 && ncclScalarHostImmediate == 1);

// Flags and the rest.
static_assert(NCCL_SPLIT_NOCOLOR == -1);
static_assert(NCCL_WIN_DEFAULT == 0 && NCCL_WIN_COLL_SYMMETRIC == 1);
static_assert(NCCL_WIN_STRICT_ORDERING == 2 && NCCL_WIN_REQUIRED_ALIGNMENT == 4096);
static_assert(NCCL_SHRINK_DEFAULT == 0 && NCCL_SHRINK_ABORT == 1);
static_assert(NCCL_REVOKE_DEFAULT == 0 && NCCL_SUSPEND_MEM == 1);
static_assert(NCCL_CTA_POLICY_DEFAULT == 0 && NCCL_CTA_POLICY_EFFICIENCY == 1);
static_assert(NCCL_CTA_POLICY_ZERO == 2);
static_assert(ncclStatGpuMemSuspend == 0 && ncclStatGpuMemSuspended == 1);
static_assert(ncclStatGpuMemPersist == 2 && ncclStatGpuMemTotal == 3);
static_assert(sizeof(ncclWaitSignalDesc_t) == 16);
static_assert(offsetof(ncclWaitSignalDesc_t, opCnt) == 0);
static_assert(offsetof(ncclWaitSignalDesc_t, peer) == 4);
static_assert(offsetof(ncclWaitSignalDesc_t, sigIdx) == 8);
static_assert(offsetof(ncclWaitSignalDesc_t, ctx) == 12);

// What 2.32 added, as its headers have it.
#if NCCL_VERSION_CODE >= 23203 || defined(TUTTI_NO_CUDA)
static_assert(sizeof(ncclCollConfig_t) == 72 && sizeof(ncclConfigExt_t) == 24);
static_assert(offsetof(ncclCollConfig_t, ext) == 16 && offsetof(ncclCollConfig_t, minCTAs) == 24);
static_assert(offsetof(ncclCollConfig_t, cgaClusterSize) == 36);
static_assert(offsetof(ncclCollConfig_t, algSelection) == 40);
static_assert(offsetof(ncclCollConfig_t, forceAlgSelection) == 48);
static_assert(offsetof(ncclCollConfig_t, CTAPolicy) == 52);
static_assert(offsetof(ncclCollConfig_t, userProfilerTag) == 56);
static_assert(offsetof(ncclCollConfig_t, launchCompletionEvent) == 64);
static_assert(offsetof(ncclConfigExt_t, key) == 8 && offsetof(ncclConfigExt_t, val) == 16);
static_assert(sizeof(ncclEncryptionConfig_t) == 32);
static_assert(offsetof(ncclEncryptionConfig_t, mode) == 16);
static_assert(offsetof(ncclEncryptionConfig_t, psk) == 24);
static_assert(NCCL_ENCRYPTION_MODE_NONE == 0 && NCCL_ENCRYPTION_MODE_PSK == 1);
#endif
