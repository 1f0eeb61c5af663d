#pragma once

// Looks libibverbs up at run time: Tutti is not linked with libibverbs, and loads on machines
// without libibverbs. A build needs the headers of libibverbs, because the calls that move data go
// through pointers in their structures.
//
// Code of this folder calls verbs through a VerbsLibrary only. Exceptions are ibv_post_send,
// ibv_post_recv, ibv_poll_cq and ibv_req_notify_cq, which <infiniband/verbs.h> defines inline over
// pointers, without the library.
//
// A VerbsLibrary is a value of function pointers, so that a test can supply its own functions.
//
// Thread-safe. A library is never unloaded, because its drivers do not expect an unloading.

#include <infiniband/verbs.h>

#include <string>

#include "base/status.h"

// The header's macros of these names would replace the functions looked up here.
#undef ibv_query_port
#undef ibv_reg_mr

namespace tutti {

// All functions in use: the member's name, the symbol, its version, the result, the parameters.
#define TUTTI_VERBS_CALLS(X)                                                                      \
  X(fork_init, "ibv_fork_init", "IBVERBS_1.1", int, (void))                                       \
  X(get_device_list, "ibv_get_device_list", "IBVERBS_1.1", ibv_device**, (int*))                  \
  X(free_device_list, "ibv_free_device_list", "IBVERBS_1.1", void, (ibv_device**))                \
  X(open_device, "ibv_open_device", "IBVERBS_1.1", ibv_context*, (ibv_device*))                   \
  X(close_device, "ibv_close_device", "IBVERBS_1.1", int, (ibv_context*))                         \
  X(query_device, "ibv_query_device", "IBVERBS_1.1", int, (ibv_context*, ibv_device_attr*))       \
  X(query_port, "ibv_query_port", "IBVERBS_1.1", int, (ibv_context*, uint8_t, ibv_port_attr*))    \
  X(query_gid_table, "_ibv_query_gid_table", "IBVERBS_1.11", ssize_t,                             \
    (ibv_context*, ibv_gid_entry*, size_t, uint32_t, size_t))                                     \
  X(get_async_event, "ibv_get_async_event", "IBVERBS_1.1", int, (ibv_context*, ibv_async_event*)) \
  X(ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1", void, (ibv_async_event*))              \
  X(event_type_str, "ibv_event_type_str", "IBVERBS_1.1", const char*, (ibv_event_type))           \
  X(wc_status_str, "ibv_wc_status_str", "IBVERBS_1.1", const char*, (ibv_wc_status))              \
  X(alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1", ibv_pd*, (ibv_context*))                             \
  X(dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1", int, (ibv_pd*))                                  \
  X(reg_mr, "ibv_reg_mr", "IBVERBS_1.1", ibv_mr*, (ibv_pd*, void*, size_t, int))                  \
  X(dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1", int, (ibv_mr*))                                      \
  X(create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0", ibv_comp_channel*,             \
    (ibv_context*))                                                                               \
  X(destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0", int, (ibv_comp_channel*))    \
  X(create_cq, "ibv_create_cq", "IBVERBS_1.1", ibv_cq*,                                           \
    (ibv_context*, int, void*, ibv_comp_channel*, int))                                           \
  X(destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1", int, (ibv_cq*))                                  \
  X(get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1", int, (ibv_comp_channel*, ibv_cq**, void**))  \
  X(ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1", void, (ibv_cq*, unsigned))                 \
  X(create_qp, "ibv_create_qp", "IBVERBS_1.1", ibv_qp*, (ibv_pd*, ibv_qp_init_attr*))             \
  X(modify_qp, "ibv_modify_qp", "IBVERBS_1.1", int, (ibv_qp*, ibv_qp_attr*, int))                 \
  X(destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1", int, (ibv_qp*))

// Functions of newer libraries; null where the library lacks a function.
#define TUTTI_VERBS_OPTIONAL_CALLS(X)                            \
  X(reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8", ibv_mr*,    \
    (ibv_pd*, void*, size_t, uint64_t, unsigned))                \
  X(reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", ibv_mr*, \
    (ibv_pd*, uint64_t, size_t, uint64_t, int, int))

struct VerbsLibrary {
#define TUTTI_VERBS_MEMBER(name, symbol, version, result, parameters) \
  result(*name) parameters = nullptr;
  TUTTI_VERBS_CALLS(TUTTI_VERBS_MEMBER)
  TUTTI_VERBS_OPTIONAL_CALLS(TUTTI_VERBS_MEMBER)
#undef TUTTI_VERBS_MEMBER
};

// Loads the library of the name or path `file`, and looks up all functions. SystemError names a
// library that cannot be loaded, or a missing function that is not optional.
Result<VerbsLibrary> LoadVerbsLibrary(const std::string& file);

}  // namespace tutti
