"""A shuffled order without a table: position → index as a function of (seed, epoch, position). Knows no row."""

from __future__ import annotations

import hashlib
import math

import numpy as np

_ROUNDS = 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Permutation:
    """A bijection of [0, n): a Feistel network over Z_a × Z_b with a·b ≥ n, walked until it lands inside.

    O(1) time and memory per position, whatever n; the same on every machine. Rounds are mixed by splitmix64.
    """

    def __init__(self, n: int, *, seed: int, epoch: int) -> None:
        if n < 1:
            raise ValueError(f"a permutation of {n} elements")
        self.n = n
        self._a = max(1, math.isqrt(n - 1) + 1)
        self._b = -(-n // self._a)
        digest = hashlib.sha256(f"tracemask permutation 1:{n}:{seed}:{epoch}".encode()).digest() * 2
        self._keys = np.frombuffer(digest, dtype="<u8")[:_ROUNDS].astype(np.uint64)

    def __call__(self, position: int) -> int:
        """The index at `position`."""
        return int(self.take(np.array([position]))[0])

    def take(self, positions: np.ndarray) -> np.ndarray:
        """The indices at `positions`, int64 of the same shape. IndexError outside [0, n)."""
        out = np.asarray(positions, dtype=np.int64)
        if out.size and (out.min() < 0 or out.max() >= self.n):
            raise IndexError(f"position outside [0, {self.n})")
        out = self._once(out)
        while (outside := out >= self.n).any():
            out[outside] = self._once(out[outside])
        return out

    def _once(self, values: np.ndarray) -> np.ndarray:
        a, b = np.uint64(self._a), np.uint64(self._b)
        x, y = np.divmod(values.astype(np.uint64), b)
        for round_, key in enumerate(self._keys):
            if round_ % 2 == 0:
                x = (x + _mix(y ^ key) % a) % a
            else:
                y = (y + _mix(x ^ key) % b) % b
        return (x * b + y).astype(np.int64)


def _mix(z: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * _MIX[0]
        z = (z ^ (z >> np.uint64(27))) * _MIX[1]
    return z ^ (z >> np.uint64(31))
