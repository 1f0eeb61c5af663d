"""The hosts of a job: this machine, or two network namespaces that a switch in a third joins."""

import subprocess


class Impossible(Exception):
    """This machine allows no such hosts."""


def _ip(*words):
    try:
        subprocess.run(["ip", *words], check=True, capture_output=True)
    except FileNotFoundError as error:
        raise Impossible("network namespaces need the ip program (package iproute2)") from error
    except subprocess.CalledProcessError as error:
        raise Impossible(f"this machine allows no network namespaces: {error.stderr.decode().strip()}") from error


class OneHost:
    def namespace_of(self, _rank, _ranks):
        return None

    def end(self):
        pass


class TwoHosts:
    """Hosts "a" and "b". The first half of the ranks is on "a"."""

    def __init__(self, name):
        self._names = {side: f"{name}-{side}" for side in "abs"}
        self._made = []
        try:
            self._make()
        except Impossible:
            self.end()
            raise

    def _make(self):
        for one in self._names.values():
            _ip("netns", "add", one)
            self._made.append(one)
        switch = self._names["s"]
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for number, side in enumerate("ab", 1):
            here = self._names[side]
            _ip("link", "add", "tutti0", "netns", here, "type", "veth", "peer", "name", f"port-{side}", "netns", switch)
            _ip("-n", switch, "link", "set", f"port-{side}", "master", "switch", "up")
            _ip("-n", here, "addr", "add", f"10.213.81.{number}/24", "dev", "tutti0")
            _ip("-n", here, "link", "set", "lo", "up")
            _ip("-n", here, "link", "set", "tutti0", "up")

    @staticmethod
    def side_of(rank, ranks):
        return "a" if rank < ranks // 2 else "b"

    def namespace_of(self, rank, ranks):
        return f"/var/run/netns/{self._names[self.side_of(rank, ranks)]}"

    def cut(self):
        """Drops everything between the hosts. No host sees it: its own cable stays up."""
        _ip("-n", self._names["s"], "link", "set", "port-b", "nomaster")

    def mend(self):
        _ip("-n", self._names["s"], "link", "set", "port-b", "master", "switch")

    def end(self):
        for one in self._made:
            subprocess.run(["ip", "netns", "del", one], check=False, capture_output=True)
