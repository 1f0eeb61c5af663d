// SPDX-License-Identifier: Apache-2.0
//
// nccl_device/reduce_copy.h: sums and copies over buffers of one rank, of an LSA team, or of
// multicast memory, by a group of threads. NCCL calls them experimental.
//
// One group of one rank does the whole work; the functions are no collectives. The functions have
// no barrier: the caller makes sure that the sources are written, and tells the other ranks when
// the destinations are written. Halves and bfloat16 are summed in float, 8-bit floats in half.
// Counts are numbers of elements; UNROLL is how many elements a thread reads at a time.
//
// Names: Lsa is a buffer on every rank of a team. Multimem is a buffer in multicast memory: the
// hardware sums the ranks' buffers at a read and writes on all ranks. Local are buffers of this
// rank. Forms with functions take a function for the address of buffer 0 … n-1.

#ifndef NCCL_DEVICE_REDUCE_COPY_H_
#define NCCL_DEVICE_REDUCE_COPY_H_

#include "nccl_device/impl/reduce_copy__impl.h"

#if TUTTI_DEVICE_API

#define TUTTI_UNROLL_DEFAULT int UNROLL = 4 * 16 / static_cast<int>(sizeof(T))

// -------------------------------------------------------------------------------------------------
// From many buffers to many, given by functions
// -------------------------------------------------------------------------------------------------

// Reduces by `redOp`, a function of two elements to one element.
template <typename T, typename Coop, typename SrcLambda, typename DstLambda, typename RedOp,
          typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceLsaCopy(Coop coop, SrcLambda srcLambda, int nSrc,
                                             DstLambda dstLambda, int nDst, const RedOp& redOp,
                                             IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, srcLambda, nSrc, dstLambda, nDst,
                                       tutti::device::OwnOperator<T, RedOp>{redOp},
                                       static_cast<size_t>(count));
}

template <typename T, typename Coop, typename SrcLambda, typename DstLambda, typename IntCount,
          TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumLsaCopy(Coop coop, SrcLambda srcLambda, int nSrc,
                                                DstLambda dstLambda, int nDst, IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, srcLambda, nSrc, dstLambda, nDst,
                                       tutti::device::Sum<T>{}, static_cast<size_t>(count));
}

// -------------------------------------------------------------------------------------------------
// Sums: to one buffer of this rank
// -------------------------------------------------------------------------------------------------

template <typename T, typename Coop, typename SrcLambda, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSum(Coop coop, SrcLambda srcLambda, int nSrc, T* dstPtr,
                                         IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, srcLambda, nSrc, tutti::device::OneBuffer<T>{dstPtr},
                                       1, tutti::device::Sum<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSum(Coop coop, ncclSymPtr<T> src, T* dstPtr, IntCount count,
                                         ncclTeam team) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::BufferOfRanks<T>{src, team},
                                       team.nRanks, tutti::device::OneBuffer<T>{dstPtr}, 1,
                                       tutti::device::Sum<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSum(Coop coop, ncclSymPtr<T> src, T* dstPtr, IntCount count,
                                         ncclDevComm_t devComm) {
  ncclLsaReduceSum<T, Coop, IntCount, UNROLL>(coop, src, dstPtr, count, ncclTeamLsa(devComm));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSum(Coop coop, ncclWindow_t window, size_t offset, T* dstPtr,
                                         IntCount count, ncclTeam team) {
  ncclLsaReduceSum<T, Coop, IntCount, UNROLL>(coop, ncclSymPtr<T>(window, offset), dstPtr, count,
                                              team);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSum(Coop coop, ncclWindow_t window, size_t offset, T* dstPtr,
                                         IntCount count, ncclDevComm_t devComm) {
  ncclLsaReduceSum<T, Coop, IntCount, UNROLL>(coop, ncclSymPtr<T>(window, offset), dstPtr, count,
                                              ncclTeamLsa(devComm));
}

template <typename T, typename Coop, typename SrcLambda, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLocalReduceSum(Coop coop, SrcLambda srcLambda, int nSrc, T* dstPtr,
                                           IntCount count) {
  ncclLsaReduceSum<T, Coop, SrcLambda, IntCount, UNROLL>(coop, srcLambda, nSrc, dstPtr, count);
}
// The nSrc buffers lie `displ` elements apart.
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLocalReduceSum(Coop coop, int nSrc, T* basePtr, size_t displ, T* dstPtr,
                                           IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::BuffersApart<T>{basePtr, displ}, nSrc,
                                       tutti::device::OneBuffer<T>{dstPtr}, 1,
                                       tutti::device::Sum<T>{}, static_cast<size_t>(count));
}

// -------------------------------------------------------------------------------------------------
// Copies: from one buffer of this rank
// -------------------------------------------------------------------------------------------------

template <typename T, typename Coop, typename DstLambda, typename IntCount, TUTTI_UNROLL_DEFAULT,
          typename = tutti::device::IfInteger<IntCount>>
NCCL_DEVICE_INLINE void ncclLsaCopy(Coop coop, T* srcPtr, DstLambda dstLambda, int nDst,
                                    IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::OneBuffer<T>{srcPtr}, 1, dstLambda,
                                       nDst, tutti::device::Copied<T>{},
                                       static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaCopy(Coop coop, T* srcPtr, ncclSymPtr<T> dst, IntCount count,
                                    ncclTeam team) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::OneBuffer<T>{srcPtr}, 1,
                                       tutti::device::BufferOfRanks<T>{dst, team}, team.nRanks,
                                       tutti::device::Copied<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaCopy(Coop coop, T* srcPtr, ncclSymPtr<T> dst, IntCount count,
                                    ncclDevComm_t devComm) {
  ncclLsaCopy<T, Coop, IntCount, UNROLL>(coop, srcPtr, dst, count, ncclTeamLsa(devComm));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaCopy(Coop coop, T* srcPtr, ncclWindow_t window, size_t offset,
                                    IntCount count, ncclTeam team) {
  ncclLsaCopy<T, Coop, IntCount, UNROLL>(coop, srcPtr, ncclSymPtr<T>(window, offset), count, team);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaCopy(Coop coop, T* srcPtr, ncclWindow_t window, size_t offset,
                                    IntCount count, ncclDevComm_t devComm) {
  ncclLsaCopy<T, Coop, IntCount, UNROLL>(coop, srcPtr, ncclSymPtr<T>(window, offset), count,
                                         ncclTeamLsa(devComm));
}

template <typename T, typename Coop, typename DstLambda, typename IntCount, TUTTI_UNROLL_DEFAULT,
          typename = tutti::device::IfInteger<IntCount>>
NCCL_DEVICE_INLINE void ncclLocalCopy(Coop coop, T* srcPtr, DstLambda dstLambda, int nDst,
                                      IntCount count) {
  ncclLsaCopy<T, Coop, DstLambda, IntCount, UNROLL>(coop, srcPtr, dstLambda, nDst, count);
}
// The nDst buffers lie `displ` elements apart.
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLocalCopy(Coop coop, T* srcPtr, int nDst, T* basePtr, size_t displ,
                                      IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::OneBuffer<T>{srcPtr}, 1,
                                       tutti::device::BuffersApart<T>{basePtr, displ}, nDst,
                                       tutti::device::Copied<T>{}, static_cast<size_t>(count));
}

// -------------------------------------------------------------------------------------------------
// Sums of a buffer on every rank, to a buffer on every rank
// -------------------------------------------------------------------------------------------------

template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumCopy(Coop coop, ncclSymPtr<T> src, ncclTeam srcTeam,
                                             ncclSymPtr<T> dst, ncclTeam dstTeam, IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(
      coop, tutti::device::BufferOfRanks<T>{src, srcTeam}, srcTeam.nRanks,
      tutti::device::BufferOfRanks<T>{dst, dstTeam}, dstTeam.nRanks, tutti::device::Sum<T>{},
      static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumCopy(Coop coop, ncclSymPtr<T> src, ncclSymPtr<T> dst,
                                             IntCount count, ncclTeam team) {
  ncclLsaReduceSumCopy<T, Coop, IntCount, UNROLL>(coop, src, team, dst, team, count);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumCopy(Coop coop, ncclSymPtr<T> src, ncclSymPtr<T> dst,
                                             IntCount count, ncclDevComm_t devComm) {
  ncclLsaReduceSumCopy<T, Coop, IntCount, UNROLL>(coop, src, dst, count, ncclTeamLsa(devComm));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumCopy(Coop coop, ncclWindow_t srcWindow, size_t srcOffset,
                                             ncclWindow_t dstWindow, size_t dstOffset,
                                             IntCount count, ncclTeam team) {
  ncclLsaReduceSumCopy<T, Coop, IntCount, UNROLL>(coop, ncclSymPtr<T>(srcWindow, srcOffset),
                                                  ncclSymPtr<T>(dstWindow, dstOffset), count, team);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumCopy(Coop coop, ncclWindow_t srcWindow, size_t srcOffset,
                                             ncclWindow_t dstWindow, size_t dstOffset,
                                             IntCount count, ncclDevComm_t devComm) {
  ncclLsaReduceSumCopy<T, Coop, IntCount, UNROLL>(coop, srcWindow, srcOffset, dstWindow, dstOffset,
                                                  count, ncclTeamLsa(devComm));
}
// The nSrc buffers lie dSrc elements apart, the nDst ones dDst.
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLocalReduceSumCopy(Coop coop, int nSrc, T* srcBasePtr, size_t dSrc,
                                               int nDst, T* dstBasePtr, size_t dDst,
                                               IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::BuffersApart<T>{srcBasePtr, dSrc}, nSrc,
                                       tutti::device::BuffersApart<T>{dstBasePtr, dDst}, nDst,
                                       tutti::device::Sum<T>{}, static_cast<size_t>(count));
}

// -------------------------------------------------------------------------------------------------
// The same over multicast memory, on GPUs of compute capability 9.0 and later
// -------------------------------------------------------------------------------------------------

template <typename T, typename Coop, typename SrcLambda, typename DstLambda, typename RedOp,
          typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceMultimemCopy(Coop coop, SrcLambda srcLambda, int nSrc,
                                                  DstLambda dstLambda, int nDst, const RedOp& redOp,
                                                  IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(
      coop, srcLambda, nSrc, tutti::device::MultimemDestinations<T, DstLambda>{dstLambda}, nDst,
      tutti::device::OwnOperator<T, RedOp>{redOp}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename SrcLambda, typename DstLambda, typename IntCount,
          TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumMultimemCopy(Coop coop, SrcLambda srcLambda, int nSrc,
                                                     DstLambda dstLambda, int nDst,
                                                     IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, srcLambda, nSrc,
                                       tutti::device::MultimemDestinations<T, DstLambda>{dstLambda},
                                       nDst, tutti::device::Sum<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename SrcLambda, typename DstLambda, typename IntCount,
          TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSumLsaCopy(Coop coop, SrcLambda srcLambda, int nSrc,
                                                     DstLambda dstLambda, int nDst,
                                                     IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(
      coop, tutti::device::MultimemSources<T, SrcLambda>{srcLambda}, nSrc, dstLambda, nDst,
      tutti::device::Sum<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename SrcLambda, typename DstLambda, typename IntCount,
          TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSumMultimemCopy(Coop coop, SrcLambda srcLambda, int nSrc,
                                                          DstLambda dstLambda, int nDst,
                                                          IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(
      coop, tutti::device::MultimemSources<T, SrcLambda>{srcLambda}, nSrc,
      tutti::device::MultimemDestinations<T, DstLambda>{dstLambda}, nDst, tutti::device::Sum<T>{},
      static_cast<size_t>(count));
}

// The sum over the ranks of a team, to one buffer of this rank. `srcPtr` is an address in multicast
// memory, as is `dstPtr` in the functions that copy to multicast memory.
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSum(Coop coop, T* srcPtr, T* dstPtr, IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::OneMultimemSource<T>{srcPtr}, 1,
                                       tutti::device::OneBuffer<T>{dstPtr}, 1,
                                       tutti::device::Sum<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSum(Coop coop, ncclSymPtr<T> src, T* dstPtr,
                                              IntCount count, ncclMultimemHandle multimem) {
  ncclMultimemReduceSum<T, Coop, IntCount, UNROLL>(coop, src.multimemPtr(multimem), dstPtr, count);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSum(Coop coop, ncclWindow_t window, size_t offset,
                                              T* dstPtr, IntCount count,
                                              ncclMultimemHandle multimem) {
  ncclMultimemReduceSum<T, Coop, IntCount, UNROLL>(coop, ncclSymPtr<T>(window, offset), dstPtr,
                                                   count, multimem);
}

// A buffer of this rank, to all ranks of the team.
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemCopy(Coop coop, T* srcPtr, T* dstPtr, IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::OneBuffer<T>{srcPtr}, 1,
                                       tutti::device::OneMultimemDestination<T>{dstPtr}, 1,
                                       tutti::device::Copied<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemCopy(Coop coop, T* srcPtr, ncclSymPtr<T> dst, IntCount count,
                                         ncclMultimemHandle multimem) {
  ncclMultimemCopy<T, Coop, IntCount, UNROLL>(coop, srcPtr, dst.multimemPtr(multimem), count);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemCopy(Coop coop, T* srcPtr, ncclWindow_t window, size_t offset,
                                         IntCount count, ncclMultimemHandle multimem) {
  ncclMultimemCopy<T, Coop, IntCount, UNROLL>(coop, srcPtr, ncclSymPtr<T>(window, offset), count,
                                              multimem);
}

// The sum over the ranks of a team, to all of them.
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSumCopy(Coop coop, T* srcPtr, T* dstPtr, IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::OneMultimemSource<T>{srcPtr}, 1,
                                       tutti::device::OneMultimemDestination<T>{dstPtr}, 1,
                                       tutti::device::Sum<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSumCopy(Coop coop, ncclSymPtr<T> src,
                                                  ncclMultimemHandle srcMultimem, ncclSymPtr<T> dst,
                                                  ncclMultimemHandle dstMultimem, IntCount count) {
  ncclMultimemReduceSumCopy<T, Coop, IntCount, UNROLL>(coop, src.multimemPtr(srcMultimem),
                                                       dst.multimemPtr(dstMultimem), count);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSumCopy(Coop coop, ncclWindow_t srcWindow,
                                                  size_t srcOffset, ncclMultimemHandle srcMultimem,
                                                  ncclWindow_t dstWindow, size_t dstOffset,
                                                  ncclMultimemHandle dstMultimem, IntCount count) {
  ncclMultimemReduceSumCopy<T, Coop, IntCount, UNROLL>(
      coop, ncclSymPtr<T>(srcWindow, srcOffset), srcMultimem, ncclSymPtr<T>(dstWindow, dstOffset),
      dstMultimem, count);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumMultimemCopy(Coop coop, ncclSymPtr<T> src, ncclTeam srcTeam,
                                                     T* dstPtr, IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::BufferOfRanks<T>{src, srcTeam},
                                       srcTeam.nRanks,
                                       tutti::device::OneMultimemDestination<T>{dstPtr}, 1,
                                       tutti::device::Sum<T>{}, static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclLsaReduceSumMultimemCopy(Coop coop, ncclSymPtr<T> src, ncclTeam srcTeam,
                                                     ncclSymPtr<T> dst,
                                                     ncclMultimemHandle dstMultimem,
                                                     IntCount count) {
  ncclLsaReduceSumMultimemCopy<T, Coop, IntCount, UNROLL>(coop, src, srcTeam,
                                                          dst.multimemPtr(dstMultimem), count);
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSumLsaCopy(Coop coop, T* srcPtr, ncclSymPtr<T> dst,
                                                     ncclTeam dstTeam, IntCount count) {
  tutti::device::ReduceCopy<T, UNROLL>(coop, tutti::device::OneMultimemSource<T>{srcPtr}, 1,
                                       tutti::device::BufferOfRanks<T>{dst, dstTeam},
                                       dstTeam.nRanks, tutti::device::Sum<T>{},
                                       static_cast<size_t>(count));
}
template <typename T, typename Coop, typename IntCount, TUTTI_UNROLL_DEFAULT>
NCCL_DEVICE_INLINE void ncclMultimemReduceSumLsaCopy(Coop coop, ncclSymPtr<T> src,
                                                     ncclMultimemHandle srcMultimem,
                                                     ncclSymPtr<T> dst, ncclTeam dstTeam,
                                                     IntCount count) {
  ncclMultimemReduceSumLsaCopy<T, Coop, IntCount, UNROLL>(coop, src.multimemPtr(srcMultimem), dst,
                                                          dstTeam, count);
}

#undef TUTTI_UNROLL_DEFAULT

#endif  // TUTTI_DEVICE_API

#endif  // NCCL_DEVICE_REDUCE_COPY_H_
