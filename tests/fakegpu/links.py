"""Counts what passes each link of a machine when its GPUs, joined by channels, run an AllReduce.

Usage: links.py LIBRARY_FOLDER MACHINE RINGS, with FAKE_DRIVER and TUTTI_FAKE_GPUS set. MACHINE is a file of
tests/data/topologies/machines. A communicator is made of all its GPUs, which are the stand-in's; each rank tells what it
sends to each other rank, and the results are checked. Then:

- where the NVLinks of some pairs join all GPUs, all data goes by these, and the busiest carries what a rank sends round
  one of RINGS rings, of which each has links of its own;
- else every group of GPUs below one PCI switch or one processor, or joined by NVLinks, is left by each channel once: what
  leaves it is what one rank sends.
"""

import collections
import ctypes
import os
import re
import sys
import tempfile
import xml.etree.ElementTree as ET

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
machine, rings = sys.argv[2], int(sys.argv[3])
COUNT = 3 << 20  # elements of four bytes


def gpus_of(tree):
    """The PCI elements of GPUs, in the order of their ranks."""
    elements = [pci for pci in tree.iter("pci") if pci.find("gpu") is not None]
    return sorted(elements, key=lambda pci: int(pci.find("gpu").get("rank")))


def as_the_stand_in_has_it(tree):
    """Gives the machine's GPUs the addresses of the stand-in's, and all else others."""
    old = {pci.get("busid"): f"0000:{number + 1:02x}:00.0" for number, pci in enumerate(gpus_of(tree))}
    for pci in tree.iter("pci"):
        pci.set("busid", old.get(pci.get("busid"), "0001" + pci.get("busid")[4:]))
    for link in tree.iter("nvlink"):
        link.set("target", old.get(link.get("target"), link.get("target")))
    return list(old.values())


def sent_by(rank, ranks):
    """How many bytes it sends to each other rank, as the plan of its communicator says."""
    text = ctypes.create_string_buffer(8192)
    result = rank.nccl.tuttiPlanDescribe(rank.comm, b"AllReduce", ctypes.c_size_t(COUNT), 7, 0, text,
                                         ctypes.c_size_t(len(text)), None)
    assert result == 0, rank.error()
    plan = text.value.decode()
    assert "ring AllReduce" in plan, plan
    sent = {int(peer): int(sends) * int(size)
            for peer, sends, size in re.findall(r"to rank (\d+): (\d+) sends of (\d+) bytes", plan)}
    assert abs(sum(sent.values()) - 2 * (ranks - 1) * 4 * COUNT // ranks) < COUNT // 50, plan
    return sent


def main():
    tree = ET.parse(machine)
    addresses = as_the_stand_in_has_it(tree)
    ranks = len(addresses)
    folder = tempfile.mkdtemp()
    os.environ["NCCL_TOPO_FILE"] = os.path.join(folder, "machine.xml")
    tree.write(os.environ["NCCL_TOPO_FILE"])
    from faults import together  # pylint: disable=import-outside-toplevel

    sent = {}

    def body(rank):
        assert rank.result == 0, rank.error()
        number = rank.number()
        rank.fill(0, float(number + 1))
        assert rank.all_reduce() == 0 and rank.synchronize() == 0
        assert rank.first_of(0) == ranks * (ranks + 1) / 2, rank.first_of(0)
        sent[number] = sent_by(rank, ranks)
        rank.nccl.ncclCommDestroy(rank.comm)

    together(ranks, body)
    os.remove(os.environ["NCCL_TOPO_FILE"])
    os.rmdir(folder)
    links = collections.Counter()
    for number, pci in enumerate(gpus_of(tree)):
        for link in pci.iter("nvlink"):
            if link.get("target") in addresses:
                links[number, addresses.index(link.get("target"))] += int(link.get("count"))
    islands = islands_of(links, ranks)
    one = sum(sent[0].values())
    if len(islands) == 1:
        by_link = {pair: size / links[pair] for pair, size in pairs_of(sent) if links[pair]}
        aside = [(pair, size) for pair, size in pairs_of(sent) if not links[pair]]
        assert not aside, f"between GPUs without a link: {aside}"
        print(f"{len(by_link)} pairs send over {sum(links[pair] for pair in by_link)} links, the busiest "
              f"{max(by_link.values()) / one:.3f} of what one rank sends")
        assert max(by_link.values()) <= 1.05 * one / rings, by_link
        return
    groups = islands + [[addresses.index(pci.get("busid")) for pci in above.iter("pci") if pci.get("busid") in addresses]
              for above in list(tree.iter("cpu")) + list(tree.iter("pci"))]
    groups = [group for group in groups if 1 < len(group) < ranks]
    assert groups
    for group in groups:
        left = sum(size for (a, b), size in pairs_of(sent) if a in group and b not in group)
        print(f"GPUs {group} are left by {left / one:.2f} of what one rank sends")
        assert left <= 1.05 * one, (group, sent)


def islands_of(links, ranks):
    """The groups of GPUs that are joined by links."""
    islands = [{number} for number in range(ranks)]
    for a, b in links:
        joined = [island for island in islands if a in island or b in island]
        islands = [island for island in islands if island not in joined] + [set().union(*joined)]
    return [sorted(island) for island in islands]


def pairs_of(sent):
    return [((a, b), size) for a, to in sent.items() for b, size in to.items()]


if __name__ == "__main__":
    main()
