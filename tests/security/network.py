"""A wire between two hosts that are network namespaces, with an attacker on the wire who reads and changes packets."""

import os
import select
import socket
import struct
import subprocess
import threading

import stage as stages

ADDRESSES = {"a": "10.213.80.1", "b": "10.213.80.2"}
SOL_PACKET, PACKET_VNET_HDR, PACKET_OUTGOING = 263, 15, 4
VNET_BYTES, ETHERNET_BYTES = 10, 14
ETH_P_ALL, TCP, SYN = 3, 6, 2
# Longer than any packet of a veth, whose segments the kernel need not cut.
MOST_BYTES = VNET_BYTES + ETHERNET_BYTES + 65536


def _host(talk):
    """The body of the process that holds the namespace of a host until the stage ends."""
    talk.send("ready")
    talk.recv()


def _enter_new_host(name):
    stages.check_libc(stages.libc.unshare(stages.CLONE_NEWNET | stages.CLONE_NEWUTS), "unshare")
    socket.sethostname(name)


class Packet:
    """A TCP packet of IPv4 inside a frame of the wire."""

    def __init__(self, frame):
        ip = VNET_BYTES + ETHERNET_BYTES
        self.tcp = ip + (frame[ip] & 15) * 4
        ends = struct.unpack_from(">4s4s", frame, ip + 12)
        ports = struct.unpack_from(">HH", frame, self.tcp)
        self.sender, self.receiver = (ends[0], ports[0]), (ends[1], ports[1])
        self.number = struct.unpack_from(">I", frame, self.tcp + 4)[0]
        self.flags = frame[self.tcp + 13]
        self.payload = self.tcp + (frame[self.tcp + 12] >> 4) * 4
        self.end = ip + struct.unpack_from(">H", frame, ip + 2)[0]

    @staticmethod
    def is_in(frame):
        at = VNET_BYTES + ETHERNET_BYTES
        return len(frame) >= at + 20 and frame[at - 2:at] == b"\x08\x00" and frame[at + 9] == TCP


class Direction:
    """The bytes of one direction of a TCP connection."""

    def __init__(self, first):
        self.first, self.bytes = first, bytearray()

    def take(self, offset, data):
        """Keeps the bytes at `offset`; repeated bytes are taken once, and a gap is filled when its bytes come."""
        if offset + len(data) > len(self.bytes):
            self.bytes.extend(bytes(offset + len(data) - len(self.bytes)))
        self.bytes[offset:offset + len(data)] = data


class Connection:
    """A TCP connection that the wire has carried. `connector` and `acceptor` are the directions from each end; the
    number is that of the accepted connections before."""

    def __init__(self, connecting, accepting):
        self.number, self.connecting, self.accepting = None, connecting, accepting
        self.connector = self.acceptor = None

    def bytes_from(self, role):
        direction = self.connector if role == "connector" else self.acceptor
        return bytes(direction.bytes) if direction else b""


class Flip:
    """Changes one bit of the byte `offset` that the `role` end of connection `number` sends, however often the byte
    passes."""

    def __init__(self, number, role, offset):
        self.number, self.role, self.offset = number, role, offset
        self.done = False

    def __str__(self):
        return f"byte {self.offset} from the {self.role} of connection {self.number}"


class Wire:
    """Hosts "a" and "b", and the attacker's thread that carries the frames between them."""

    def __init__(self, stage, flip=None):
        self.stage, self.flip = stage, flip
        self.connections, self._by_ends = [], {}
        self._holders, self._sockets = {}, []
        for side, address in ADDRESSES.items():
            name = f"{side}-{stages.HOST_NAME}"
            holder = stage.start(_host, user=None, before=lambda name=name: _enter_new_host(name))
            assert holder.hear() == "ready"
            self._holders[side] = holder
            self._plug(side, address, holder.pid)
        self._stopping, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        """Ends the wire and removes it, so that another can be made."""
        os.write(self._stop, b".")
        self._thread.join()
        for one in self._sockets:
            one.close()
        for side in ADDRESSES:
            stages.run_ip("link", "del", f"to-{side}")
        for holder in self._holders.values():
            holder.end()

    def _plug(self, side, address, pid):
        try:
            stages.run_ip("link", "add", f"to-{side}", "type", "veth", "peer", "name", "eth0", "netns", str(pid))
            stages.run_ip("link", "set", f"to-{side}", "up")
        except subprocess.CalledProcessError as error:
            raise stages.Skipped(f"this machine allows no veth pairs: {error.stderr.decode().strip()}") from error
        for words in (("addr", "add", f"{address}/24", "dev", "eth0"), ("link", "set", "lo", "up"),
                      ("link", "set", "eth0", "up")):
            subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", "ip", *words], check=True)
        one = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        one.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        one.bind((f"to-{side}", ETH_P_ALL))
        self._sockets.append(one)

    def start(self, side, body, *arguments, **options):
        """Starts a process on a host."""
        folder = f"/proc/{self._holders[side].pid}/ns"

        def enter():
            for name in ("net", "uts"):
                with open(f"{folder}/{name}") as file:
                    stages.check_libc(stages.libc.setns(file.fileno(), 0), "setns")
        return self.stage.start(body, *arguments, before=enter, **options)

    def _carry(self):
        first, second = self._sockets
        others = {first: second, second: first}
        while True:
            ready, _, _ = select.select([first, second, self._stopping], [], [])
            if self._stopping in ready:
                return
            for one in ready:
                frame, origin = one.recvfrom(MOST_BYTES)
                if origin[2] != PACKET_OUTGOING:
                    others[one].send(self._pass(bytearray(frame)))

    def _pass(self, frame):
        """Reads a frame, and changes it where a flip asks for a change."""
        if not Packet.is_in(frame):
            return frame
        packet = Packet(frame)
        connection, role = self._find(packet)
        if connection is None:
            return frame
        direction = getattr(connection, role)
        offset = (packet.number - direction.first) % (1 << 32)
        data = frame[packet.payload:packet.end]
        if data and offset < 1 << 31:
            direction.take(offset, data)
            self._change(connection, role, offset, packet, frame)
        return frame

    def _change(self, connection, role, offset, packet, frame):
        flip = self.flip
        if flip is None or (connection.number, role) != (flip.number, flip.role):
            return
        at = flip.offset - offset
        if 0 <= at < packet.end - packet.payload:
            frame[packet.payload + at] ^= 0x10
            flip.done = True
            self._mend_checksum(frame, packet, packet.payload + at)

    @staticmethod
    def _mend_checksum(frame, packet, at):
        """Mends TCP's checksum after a bit of the byte `at` was flipped, unless the kernel has yet to compute it."""
        needs_checksum = frame[0] & 1
        if needs_checksum:
            return
        weight = 0x1000 if (at - packet.tcp) % 2 == 0 else 0x10
        added = frame[at] & 0x10 != 0
        total = (~struct.unpack_from(">H", frame, packet.tcp + 16)[0] & 0xffff) + (weight if added else 0xffff - weight)
        total = (total & 0xffff) + (total >> 16)
        struct.pack_into(">H", frame, packet.tcp + 16, ~total & 0xffff)

    def _find(self, packet):
        """Returns the packet's connection, and the role of the packet's sender."""
        if packet.flags & SYN:
            self._note_beginning(packet)
        found = self._by_ends.get((packet.sender, packet.receiver))
        if found:
            return found, "connector"
        found = self._by_ends.get((packet.receiver, packet.sender))
        return (found, "acceptor") if found and found.acceptor else (None, None)

    def _note_beginning(self, packet):
        """Counts a connection when its acceptor answers: attempts at a port where nobody listens have no number."""
        ends, first = (packet.sender, packet.receiver), (packet.number + 1) % (1 << 32)
        backward = self._by_ends.get((packet.receiver, packet.sender))
        if backward is None:
            connection = self._by_ends.setdefault(ends, Connection(*ends))
            connection.connector = Direction(first)
        elif backward.acceptor is None:
            backward.acceptor, backward.number = Direction(first), len(self.connections)
            self.connections.append(backward)

    def everything(self):
        """Returns all bytes of all connections, each direction as one piece."""
        return [one.bytes_from(role) for one in self.connections for role in ("connector", "acceptor")]


class Relay:
    """Passes connections at a port of loopback on to another port, and keeps all bytes."""

    def __init__(self, target):
        self.target, self.recorded = target, []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._pass, args=(near,), daemon=True).start()

    def _pass(self, near):
        record = {"connector": bytearray(), "acceptor": bytearray()}
        self.recorded.append(record)
        try:
            far = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            near.close()
            return
        ways = {near: (far, "connector"), far: (near, "acceptor")}
        with near, far:
            while ways:
                for one in select.select(list(ways), [], [])[0]:
                    other, role = ways[one]
                    try:
                        data = one.recv(65536)
                        other.sendall(data)
                    except OSError:
                        return
                    if not data:
                        return
                    record[role] += data

    def close(self):
        self._listener.close()
