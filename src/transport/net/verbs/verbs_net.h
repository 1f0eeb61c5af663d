#pragma once

// The network over InfiniBand verbs, for InfiniBand fabrics, RoCE and iWARP.
//
// A connection joins two ends; at either end, the peer is the remote end. A connection is a control
// socket and several queue pairs, or a single queue pair. The control socket is a TCP connection
// that has proven the job's key (bootstrap/auth.h). The two ends describe their queue pairs and
// tables over the control socket (setup.h). Later an end learns from the control socket that the
// peer is gone, or sleeps and wants to be woken. Data never passes the control socket.
//
// The receiver grants buffers. For each group of receives the receiver writes entries into a table
// in the sender's memory. The sender writes the messages to the addresses in the entries. The last
// write carries an immediate value and thereby completes a receive request of the receiver:
//
//   receiver                                              sender
//   Irecv: post a receive, write entries of group g ────▶ table of grants [g mod 256][8]
//                                                         Isend: find the entry with the tag
//   buffers ◀─────────────── writes of the data ───────── post the writes
//   completion of group g ◀─ the last write, with immediate
//
// A group of a single message needs nothing more: the immediate value is the op tag, and the
// completion tells the number of bytes. For larger groups, and where the network may reorder writes
// (adaptive routing), the sender writes sizes and op tags into a table in the receiver's memory
// before a last write without data. table.h has both tables.
//
// A device of the network is a port, or several ports that share the data of each connection
// (merge.h). The queue pairs lie on all ports of the device, and long messages are cut over the
// queue pairs (stripes.h). Each group has an own queue pair, in turn. Behind the pieces on any
// further queue pair goes a send without data, whose immediate value names the group. The write
// that ends the group, on the own queue pair, tells the number of such sends.
//
//   sender                                                 receiver
//   queue pair 0: write, records, write with immediate ──▶ the group is whole when this write
//   queue pair 1: write, send with immediate ────────────▶ and this send have come
//
// iWARP has no immediate values: a send behind the writes carries the contents of the value and of
// the completion (table.h: Notice). The connection manager joins queue pairs of iWARP (manager.h).
//
//   device, port       devices.h       GIDs             gid.h          NCCL_IB_HCA  hca_filter.h
//   merged ports       merge.h         ports in use     ports.h        shares       stripes.h
//   protection domain  nic.h           registrations    memory_cache.h
//   queue pair         queue_pair.h    queues           completion_queues.h
//   both ends          channel.h       queue pairs      placement.h    ports        port_choice.h
//   states             recovery.h      set-up           setup.h        failures     fault.h
//   sending end        send_comm.h     receiving end    recv_comm.h
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
    // The address of listeners for control sockets (port 0). Without a valid address,
    // NCCL_SOCKET_IFNAME and the rules of sys/network_interface.h choose the interface.
    SocketAddress address;
    // The folder with the kernel's modules.
    std::string sysfs = "/sys";
  };
  // Makes the network; IsViable says why the network cannot be used on this host. Fails when a
  // setting cannot be understood. `loop` must outlive the network and all of its objects.
  static Result<std::unique_ptr<Net>> Create(EventLoop& loop, const Key& key,
                                             const Settings& settings, const Options& options);
};

}  // namespace tutti
