"""Where the processes of one machine meet."""

from __future__ import annotations

from torch.distributed import (
    HashStore,  # pyright: ignore[reportPrivateImportUsage]
    TCPStore,  # pyright: ignore[reportPrivateImportUsage]
)


def single_process_store() -> HashStore:
    """Return a store in which one process can meet itself, with no network."""
    return HashStore()


def meeting_store() -> TCPStore:
    """Return a store on a free port of this machine for other processes to meet in."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def joined_store(port: int) -> TCPStore:
    """Return the meeting store of another process of this machine."""
    return TCPStore("127.0.0.1", port)
