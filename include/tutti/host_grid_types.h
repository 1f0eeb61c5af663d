// SPDX-License-Identifier: Apache-2.0
//
// tutti/host_grid_types.h: the shape of a grid on the host, its threads, and the description of a
// launch. Included by tutti/host_grid.h, which declares the functions.

#ifndef TUTTI_HOST_GRID_TYPES_H_
#define TUTTI_HOST_GRID_TYPES_H_

#include "nccl.h"

// The threads of a grid may be this many.
#define TUTTI_HOST_GRID_MAX_THREADS 4096
// Threads of a block form warps of this many, in order of their number; the last may be smaller.
#define TUTTI_HOST_WARP_SIZE 32
// The named barriers of a block.
#define TUTTI_HOST_NAMED_BARRIERS 16

typedef struct {
  unsigned int x, y, z;
} tuttiDim3_t;

// Holds the barriers and memory of a block. Defined by the library.
typedef struct tuttiHostBlock tuttiHostBlock_t;

// A thread of a grid. Its number in the block is index.x + size.x * (index.y + size.y * index.z).
typedef struct {
  tuttiDim3_t thread_index;
  tuttiDim3_t block_index;
  tuttiDim3_t block_size;
  tuttiDim3_t grid_size;
  unsigned int number;  // In its block.
  tuttiHostBlock_t* block;
} tuttiHostThread_t;

typedef void (*tuttiHostKernel_t)(const tuttiHostThread_t* self, void* argument);

// How to run a kernel. Set all bytes to zero first. A size of 0 in a direction means 1.
typedef struct {
  tuttiDim3_t grid_size;   // In blocks.
  tuttiDim3_t block_size;  // In threads.
  size_t shared_bytes;     // memory for each block beside its variables
  cudaStream_t stream;     // Null: the call returns when the kernel is done.
  // Called with the kernel's argument once no thread of the grid uses the argument any more, also
  // where the threads were not granted. Not called after an error of tuttiLaunchHost. May be null.
  void (*done)(void* argument);
} tuttiHostLaunch_t;

#endif  // TUTTI_HOST_GRID_TYPES_H_
