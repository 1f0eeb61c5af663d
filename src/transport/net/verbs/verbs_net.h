#pragma once

// The network over InfiniBand verbs, for InfiniBand fabrics, RoCE and iWARP.
//
// A connection is a control socket and one or more queue pairs. The control socket is a TCP
// connection that has proven the job's key (bootstrap/auth.h). Over it the two ends tell each other
// where their queue pairs and tables are (setup.h), and later that one of them is gone, or sleeps
// and wants to be woken. Data never goes over it.
//
// The receiver grants. For each group of receives it writes entries into a table in the sender's
// memory; the sender writes the messages to where the entries say, and the last write carries an
// immediate value, which completes one receive request at the other end:
//
//   receiver                                              sender
//   Irecv: post a receive, write entries of group g ────▶ table of grants [g mod 256][8]
//                                                         Isend: find the entry with the tag
//   buffers ◀─────────────── writes of the data ───────── post the writes
//   completion of group g ◀─ the last one, with immediate
//
// A group of one needs nothing more: the immediate value is the op tag, and the completion tells
// how many bytes came. For larger groups, and where the network may reorder writes (adaptive
// routing), the sender writes sizes and op tags into a table in the receiver's memory before a last
// write without data. table.h has both tables.
//
// A device of the network is one port, or several that share the data of each connection (merge.h).
// Its queue pairs lie on all of them, and long messages are cut over them (stripes.h): the pieces
// are written, and behind those on another queue pair than that whose turn it is with the group
// goes a send without data, whose immediate value names the group. The write that ends the group
// says how many of these there are.
//
//   sender                                                 receiver
//   queue pair 0: write, records, write with immediate ──▶ the group is whole when this has come
//   queue pair 1: write, send with immediate ────────────▶ and this
//
// Over iWARP, which has no immediate values, a send behind the writes says what the value and the
// completion would (table.h: Notice), and the connection manager joins the queue pairs (manager.h).
//
//   device, port       devices.h       its address      gid.h          NCCL_IB_HCA  hca_filter.h
//   one of several     merge.h         ports in use     ports.h        shares       stripes.h
//   protection domain  nic.h           registrations    memory_cache.h
//   queue pair         queue_pair.h    set-up           setup.h        both ends    channel.h
//   sending end        send_comm.h     receiving end    recv_comm.h    failures     fault.h
//   one-sided          rma_comm.h      GPUs' memory     gpu_memory.h
//
// Threads: as Net. Authenticated connections and events of devices are taken on the loop's thread.

#include <memory>
#include <string>

#include "bootstrap/unique_id.h"
#include "config/settings.h"
#include "sys/event_loop.h"
#include "transport/net/net.h"

namespace tutti {

class VerbsNet {
 public:
  struct Options {
    // Where control sockets listen (port 0). When it is not valid, NCCL_SOCKET_IFNAME and the rules
    // of sys/network_interface.h choose the interface.
    SocketAddress address;
    // Where the kernel tells of its modules.
    std::string sysfs = "/sys";
  };
  // Makes the network; where it cannot be used here, IsViable says why. Fails when a setting cannot
  // be understood. `loop` outlives the network and all that it makes.
  static Result<std::unique_ptr<Net>> Create(EventLoop& loop, const Key& key,
                                             const Settings& settings, const Options& options);
};

}  // namespace tutti
