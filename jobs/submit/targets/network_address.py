"""The address of this machine on one of its network interfaces.

    python -m elmwright.jobs.submit.targets.network_address ib0

Slurm's batch script runs this on every machine of a job, because Ray by default uses the interface
of the default route, which is often not the fast network.
"""

import fcntl
import platform
import socket
import struct
import sys

from elmwright.pipeline.errors import UserError

GET_ADDRESS = 0x8915
"""SIOCGIFADDR of netdevice(7)."""


def address_of(interface: str) -> str:
    """The IPv4 address of an interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            answer = fcntl.ioctl(probe.fileno(), GET_ADDRESS, request)
        except OSError as error:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise UserError(
                "target",
                f"interface {interface!r} has no IPv4 address on {platform.node()} "
                f"({error.strerror}; interfaces here: {names}); change the target's interface",
            ) from None
    return socket.inet_ntoa(answer[20:24])


if __name__ == "__main__":
    try:
        print(address_of(sys.argv[1]))
    except UserError as error:
        sys.exit(f"error: {error}")
