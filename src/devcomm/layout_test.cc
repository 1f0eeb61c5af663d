// The sizes and offsets of NCCL 2.30.7, for 64-bit machines, at which programs compiled with
// NVIDIA's headers read and write the structs of the device API. The compiler checks them.

#include <cstddef>

#include "nccl_device.h"

#define TUTTI_SIZE_IS(type, bytes) \
  static_assert(sizeof(type) == (bytes), "the size of " #type " is part of the binary interface")
#define TUTTI_OFFSET_IS(type, field, bytes)       \
  static_assert(offsetof(type, field) == (bytes), \
                "where " #field " lies in " #type " is part of the binary interface")

TUTTI_SIZE_IS(ncclTeam, 12);
TUTTI_OFFSET_IS(ncclTeam, nRanks, 0);
TUTTI_OFFSET_IS(ncclTeam, rank, 4);
TUTTI_OFFSET_IS(ncclTeam, stride, 8);
TUTTI_SIZE_IS(ncclDevResourceHandle, 4);
TUTTI_SIZE_IS(ncclGinSignal_t, 4);
TUTTI_SIZE_IS(ncclGinCounter_t, 4);
TUTTI_SIZE_IS(ncclGinRequest_t, 16);
TUTTI_SIZE_IS(ncclGinWindow_t, 8);
TUTTI_SIZE_IS(ncclMultimemHandle, 8);
TUTTI_SIZE_IS(ncclLsaBarrierHandle, 8);
TUTTI_OFFSET_IS(ncclLsaBarrierHandle, nBarriers, 4);
TUTTI_SIZE_IS(ncclGinBarrierHandle, 8);
TUTTI_OFFSET_IS(ncclGinBarrierHandle, unused, 4);
TUTTI_SIZE_IS(ncclLLA2AHandle, 8);
TUTTI_OFFSET_IS(ncclLLA2AHandle, nSlots, 4);

TUTTI_SIZE_IS(ncclCommProperties, 56);
TUTTI_OFFSET_IS(ncclCommProperties, magic, 8);
TUTTI_OFFSET_IS(ncclCommProperties, version, 12);
TUTTI_OFFSET_IS(ncclCommProperties, rank, 16);
TUTTI_OFFSET_IS(ncclCommProperties, nRanks, 20);
TUTTI_OFFSET_IS(ncclCommProperties, cudaDev, 24);
TUTTI_OFFSET_IS(ncclCommProperties, nvmlDev, 28);
TUTTI_OFFSET_IS(ncclCommProperties, deviceApiSupport, 32);
TUTTI_OFFSET_IS(ncclCommProperties, multimemSupport, 33);
TUTTI_OFFSET_IS(ncclCommProperties, ginType, 36);
TUTTI_OFFSET_IS(ncclCommProperties, nLsaTeams, 40);
TUTTI_OFFSET_IS(ncclCommProperties, hostRmaSupport, 44);
TUTTI_OFFSET_IS(ncclCommProperties, railedGinType, 48);

TUTTI_SIZE_IS(ncclDevCommRequirements, 96);
TUTTI_OFFSET_IS(ncclDevCommRequirements, magic, 8);
TUTTI_OFFSET_IS(ncclDevCommRequirements, version, 12);
TUTTI_OFFSET_IS(ncclDevCommRequirements, resourceRequirementsList, 16);
TUTTI_OFFSET_IS(ncclDevCommRequirements, teamRequirementsList, 24);
TUTTI_OFFSET_IS(ncclDevCommRequirements, lsaMultimem, 32);
TUTTI_OFFSET_IS(ncclDevCommRequirements, barrierCount, 36);
TUTTI_OFFSET_IS(ncclDevCommRequirements, lsaBarrierCount, 40);
TUTTI_OFFSET_IS(ncclDevCommRequirements, railGinBarrierCount, 44);
TUTTI_OFFSET_IS(ncclDevCommRequirements, lsaLLA2ABlockCount, 48);
TUTTI_OFFSET_IS(ncclDevCommRequirements, lsaLLA2ASlotCount, 52);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginForceEnable, 56);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginContextCount, 60);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginSignalCount, 64);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginCounterCount, 68);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginConnectionType, 72);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginExclusiveContexts, 76);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginQueueDepth, 80);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginTrafficClass, 84);
TUTTI_OFFSET_IS(ncclDevCommRequirements, worldGinBarrierCount, 88);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginStrongSignalsRequired, 92);
TUTTI_OFFSET_IS(ncclDevCommRequirements, ginVaSignalsRequired, 93);

TUTTI_SIZE_IS(ncclDevResourceRequirements, 56);
TUTTI_OFFSET_IS(ncclDevResourceRequirements, bufferSize, 8);
TUTTI_OFFSET_IS(ncclDevResourceRequirements, bufferAlign, 16);
TUTTI_OFFSET_IS(ncclDevResourceRequirements, outBufferHandle, 24);
TUTTI_OFFSET_IS(ncclDevResourceRequirements, ginSignalCount, 32);
TUTTI_OFFSET_IS(ncclDevResourceRequirements, ginCounterCount, 36);
TUTTI_OFFSET_IS(ncclDevResourceRequirements, outGinSignalStart, 40);
TUTTI_OFFSET_IS(ncclDevResourceRequirements, outGinCounterStart, 48);

TUTTI_SIZE_IS(ncclTeamRequirements, 32);
TUTTI_OFFSET_IS(ncclTeamRequirements, team, 8);
TUTTI_OFFSET_IS(ncclTeamRequirements, multimem, 20);
TUTTI_OFFSET_IS(ncclTeamRequirements, outMultimemHandle, 24);

TUTTI_SIZE_IS(ncclSegmentWindow, 48);
TUTTI_OFFSET_IS(ncclSegmentWindow, segmentSize, 32);
TUTTI_OFFSET_IS(ncclSegmentWindow, memType, 40);

TUTTI_SIZE_IS(ncclWindow_vidmem, 88);
TUTTI_OFFSET_IS(ncclWindow_vidmem, winHost, 0);
TUTTI_OFFSET_IS(ncclWindow_vidmem, lsaFlatBase, 8);
TUTTI_OFFSET_IS(ncclWindow_vidmem, lsaRank, 16);
TUTTI_OFFSET_IS(ncclWindow_vidmem, worldRank, 20);
TUTTI_OFFSET_IS(ncclWindow_vidmem, stride4G, 24);
TUTTI_OFFSET_IS(ncclWindow_vidmem, mcOffset4K, 28);
TUTTI_OFFSET_IS(ncclWindow_vidmem, ginOffset4K, 32);
TUTTI_OFFSET_IS(ncclWindow_vidmem, ginWins, 40);
TUTTI_OFFSET_IS(ncclWindow_vidmem, ginMultiSegmentWins, 72);
TUTTI_OFFSET_IS(ncclWindow_vidmem, numSegments, 80);

TUTTI_SIZE_IS(ncclResourceWindow_vidmem, 64);
TUTTI_OFFSET_IS(ncclResourceWindow_vidmem, lsaFlatBase, offsetof(ncclWindow_vidmem, lsaFlatBase));
TUTTI_OFFSET_IS(ncclResourceWindow_vidmem, stride4G, offsetof(ncclWindow_vidmem, stride4G));
TUTTI_OFFSET_IS(ncclResourceWindow_vidmem, mcOffset4K, offsetof(ncclWindow_vidmem, mcOffset4K));

TUTTI_SIZE_IS(ncclDevCommWindowTable, 776);
TUTTI_OFFSET_IS(ncclDevCommWindowTable, next, 768);
TUTTI_SIZE_IS(ncclDevCommWindowTableEntry, 24);

TUTTI_SIZE_IS(ncclDevComm, 240);
TUTTI_OFFSET_IS(ncclDevComm, magic, 0);
TUTTI_OFFSET_IS(ncclDevComm, version, 4);
TUTTI_OFFSET_IS(ncclDevComm, rank, 8);
TUTTI_OFFSET_IS(ncclDevComm, nRanks, 12);
TUTTI_OFFSET_IS(ncclDevComm, nRanks_rcp32, 16);
TUTTI_OFFSET_IS(ncclDevComm, lsaRank, 20);
TUTTI_OFFSET_IS(ncclDevComm, lsaSize, 24);
TUTTI_OFFSET_IS(ncclDevComm, lsaSize_rcp32, 28);
TUTTI_OFFSET_IS(ncclDevComm, windowTable, 32);
TUTTI_OFFSET_IS(ncclDevComm, resourceWindow, 40);
TUTTI_OFFSET_IS(ncclDevComm, resourceWindow_inlined, 48);
TUTTI_OFFSET_IS(ncclDevComm, hybridWorldGinBarrier, 112);
TUTTI_OFFSET_IS(ncclDevComm, lsaMultimem, 120);
TUTTI_OFFSET_IS(ncclDevComm, lsaBarrier, 128);
TUTTI_OFFSET_IS(ncclDevComm, railGinBarrier, 136);
TUTTI_OFFSET_IS(ncclDevComm, ginConnectionCount, 144);
TUTTI_OFFSET_IS(ncclDevComm, ginNetDeviceTypes, 145);
TUTTI_OFFSET_IS(ncclDevComm, ginHandles, 152);
TUTTI_OFFSET_IS(ncclDevComm, ginSignalCount, 184);
TUTTI_OFFSET_IS(ncclDevComm, ginCounterCount, 188);
TUTTI_OFFSET_IS(ncclDevComm, ginSignalShadows, 192);
TUTTI_OFFSET_IS(ncclDevComm, ginContextCount, 200);
TUTTI_OFFSET_IS(ncclDevComm, ginConnectionsRailed, 204);
TUTTI_OFFSET_IS(ncclDevComm, ginStrongLegacySignals, 205);
TUTTI_OFFSET_IS(ncclDevComm, ginContextsRailed, 206);
TUTTI_OFFSET_IS(ncclDevComm, abortFlag, 208);
TUTTI_OFFSET_IS(ncclDevComm, hybridLsaBarrier, 216);
TUTTI_OFFSET_IS(ncclDevComm, hybridRailGinBarrier, 224);
TUTTI_OFFSET_IS(ncclDevComm, worldGinBarrier, 232);
