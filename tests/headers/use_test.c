/* A small program that uses the headers the way programs do. It is compiled, not run: as C99, as
   C11 and as C++, with all warnings as errors. The headers come twice, since programs include them
   from several places. */

#include <nccl.h>
#include <nccl_device.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>
/* once more */
#include <nccl.h>
#include <tutti/launch.h>
#include <tutti/tutti.h>

#ifdef TUTTI_TEST_CUDA
#include <cuda_runtime_api.h> /* after ours: the two declarations of cudaStream_t must agree */
#endif

static ncclResult_t Sum(float* values, size_t count, ncclComm_t comm, cudaStream_t stream) {
  ncclResult_t result = ncclGroupStart();
  if (result != ncclSuccess) return result;
  result = ncclAllReduce(values, values, count, ncclFloat, ncclSum, comm, stream);
  if (result != ncclSuccess) return result;
  return ncclGroupEnd();
}

static ncclResult_t Meet(ncclUniqueId* id) {
  tuttiLaunch_t launch = NULL;
  tuttiLaunchInfo_t info;
  size_t size = 0;
  ncclResult_t result = tuttiLaunchRead(&launch, TUTTI_LAUNCH_MAY_JOIN_PMI);
  info.size = sizeof(info);
  if (result == ncclSuccess) result = tuttiLaunchDescribe(launch, &info);
  if (result == ncclSuccess) {
    result = tuttiLaunchMeet(launch, id, sizeof(*id), id, sizeof(*id), &size, info.timeout_s);
  }
  tuttiLaunchClose(launch);
  return result;
}

int main(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  ncclUniqueId id;
  ncclComm_t comm = NCCL_COMM_NULL;
  tuttiStream_t stream = NULL;
  tuttiEvent_t event = NULL;
  size_t counts[2] = {1, 2};
  float in[3] = {1, 2, 3};
  float out[3];
  config.blocking = 0;
  if (ncclGetUniqueId(&id) != ncclSuccess) return 1;
  if (ncclCommInitRankConfig(&comm, 2, id, 0, &config) != ncclSuccess) return 1;
  if (tuttiStreamCreate(&stream) != ncclSuccess) return 1;
  if (tuttiEventCreate(&event) != ncclSuccess) return 1;
  if (Sum(in, 3, comm, stream) != ncclSuccess) return 1;
  if (tuttiAllGatherV(in, counts[0], out, counts, NULL, ncclFloat, comm, stream) != ncclSuccess) {
    return 1;
  }
  if (ncclGroupSimulateEnd(&info) != ncclSuccess) return 1;
  if (Meet(&id) != ncclSuccess) return 1;
  return info.estimatedTime < 0 && event != NULL;
}
