"""Counters: bytes sent by phase, remote buffers held at once, resident memory."""

import threading
from collections import Counter


class Profile:
    """What one rank counts while it runs.

    Attributes
    ----------
    sent_bytes, received_bytes : Counter
        Bytes by phase: "forward_fetch", "backward_fetch", "backward_push", "allreduce", "setup".
    live_remote_buffers, peak_remote_buffers : int
        Buffers of peers' rows held now, and at most at once.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self.reset()

    def reset(self):
        self.sent_bytes, self.received_bytes = Counter(), Counter()
        self.live_remote_buffers = self.peak_remote_buffers = 0

    def count(self, phase, sent=0, received=0):
        with self._lock:
            self.sent_bytes[phase] += sent
            self.received_bytes[phase] += received

    def hold(self, n=1):
        with self._lock:
            self.live_remote_buffers += n
            self.peak_remote_buffers = max(self.peak_remote_buffers, self.live_remote_buffers)

    def release(self, n=1):
        with self._lock:
            self.live_remote_buffers -= n


def _status(field):
    try:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
    except (OSError, StopIteration):
        import resource
        import sys

        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale


class Memory:
    """Peak resident memory of this process above the moment of construction, in bytes."""

    def __init__(self):
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")  # resets the kernel's high-water mark
        except OSError:
            pass
        self.base = _status("VmRSS")

    def peak(self):
        return max(0, _status("VmHWM") - self.base)
