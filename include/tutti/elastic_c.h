// SPDX-License-Identifier: Apache-2.0
//
// tutti/elastic_c.h: the way from a worker of an elastic job (tutti run --min-np) to its launcher:
// a store of small values under keys. docs/elastic.md describes the keys. The Python package uses
// these functions.
//
// Both ends prove knowledge of the job's key before a byte is parsed. Values are bytes without a
// meaning to the store.
//
// Threads: calls on one handle take turns; tuttiElasticInterrupt does not wait for its turn. A long
// get therefore wants a handle of its own.
//
// Errors: tuttiElasticLastError has the sentence of this thread's last failed call.

#ifndef TUTTI_ELASTIC_C_H_
#define TUTTI_ELASTIC_C_H_

#include <stdint.h>

#include "nccl.h"

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tuttiElastic* tuttiElastic_t;

// A key has 1 to 200 bytes, a value at most this many.
#define TUTTI_ELASTIC_MAX_VALUE_BYTES 1048576

// Connects to the first of `addresses` (host:port, with commas between them) that accepts. `key` is
// the text of TUTTI_COMM_KEY. Fails with ncclTimeout if no address accepts in time, and with
// ncclInvalidUsage for an empty `key`.
ncclResult_t tuttiElasticConnect(tuttiElastic_t* elastic, const char* addresses, const char* key,
                                 double timeout_s);
// Sets the value of the key, with a version above all earlier versions.
ncclResult_t tuttiElasticSet(tuttiElastic_t elastic, const char* key, const void* value,
                             size_t size);
// Waits until the key's version is above `newer_than` and stores value, size and version; *version
// 0 when `wait_s` seconds are over. ncclInvalidArgument, with *size, where `capacity` is too small.
ncclResult_t tuttiElasticGet(tuttiElastic_t elastic, const char* key, uint64_t newer_than,
                             double wait_s, void* value, size_t capacity, size_t* size,
                             uint64_t* version);
// Makes the call under way and all later ones fail.
ncclResult_t tuttiElasticInterrupt(tuttiElastic_t elastic);
// No thread may be using the handle. Null is allowed.
ncclResult_t tuttiElasticClose(tuttiElastic_t elastic);

const char* tuttiElasticLastError(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif  // TUTTI_ELASTIC_C_H_
