"""Keep the stack on which this thread handles signals."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator


class SignalStack(ctypes.Structure):
    """stack_t of Linux: where it begins, its flags, its size in bytes (sigaltstack(2))."""

    _fields_ = (("begin", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def signal_stack() -> SignalStack:
    """The alternate signal stack of this thread, as the kernel knows it."""
    found = SignalStack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(found))
    return found


@contextlib.contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Undo what a library does to the alternate signal stack of this thread.

    OpenVINO's CPU plugin (2026.4) registers one of its own for every model that it compiles, and puts the one from before
    back when the model goes. Of two models that go in the order in which they came, the second puts back the first's,
    which is gone: the next signal, Ctrl-C or the end of a loader process, then kills this process.
    """
    if sys.platform != "linux":
        yield
        return
    before = signal_stack()
    try:
        yield
    finally:
        ctypes.CDLL(None).sigaltstack(ctypes.byref(before), None)
