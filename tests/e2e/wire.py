# SPDX-License-Identifier: Apache-2.0
"""A cable between two processes that a test can look into, damage and cut."""
import contextlib
import socket
import struct
import threading


class Wire:
    """Listens on `port` and passes everything on to 127.0.0.1:target and back. `tamper(back, data)` sees what comes,
    from the target where `back`, before it goes on, and returns what goes on instead; None cuts the connection. It is
    called by one thread at a time, so what it does to a process happens at that very byte."""

    def __init__(self, target, tamper=None):
        self.target = target
        self.tamper = tamper or (lambda back, data: data)
        self._lock = threading.Lock()
        self._open = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        for end in (self._listener, *list(self._open)):
            _end(end)
        self._listener.close()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket()
            try:
                far.connect(("127.0.0.1", self.target))
            except OSError:
                near.close()  # nobody is there: the caller sees that too
                continue
            self._open |= {near, far}
            for one, other, back in ((near, far, False), (far, near, True)):
                threading.Thread(target=self._pass_on, args=(one, other, back), daemon=True).start()

    def _pass_on(self, one, other, back):
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                with self._lock:
                    data = self.tamper(back, data)
                if data is None:
                    break
                other.sendall(data)
        for end in (one, other):
            _end(end)
            self._open.discard(end)


def _end(end):
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def once_back(size, act):
    """Calls act() once, when so many bytes have come back and before the last of them go on."""
    seen = 0

    def tamper(back, data):
        nonlocal seen
        if back and seen < size:
            seen += len(data)
            if seen >= size:
                act()
        return data
    return tamper


def at_first_get(act):
    """Calls act() once, when a peer asks for the bytes of objects that it was told of; it has not been heard yet."""
    pending = bytearray()
    done = False

    def tamper(back, data):
        nonlocal done
        if back or done:
            return data
        pending.extend(data)
        while len(pending) >= 32:  # frames as in docs/transfer.md
            size = struct.unpack_from("<I", pending, 20)[0]
            if len(pending) < 32 + size:
                break
            opens = pending[3] == 3
            if opens and struct.unpack_from("<H", pending, 32)[0] == 2:
                done = True
                act()
                break
            del pending[:32 + size]
        return data
    return tamper


def flip_bits(rng, every):
    """Flips one bit in about `every` bytes of what comes back. tamper.flipped counts them."""
    def tamper(back, data):
        if not back:
            return data
        data = bytearray(data)
        for _ in range(len(data) // every + (rng.randrange(every) < len(data) % every)):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            tamper.flipped += 1
        return bytes(data)
    tamper.flipped = 0
    return tamper
