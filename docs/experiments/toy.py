"""A tiny causal transformer with a key-value cache, small enough that a policy trains in seconds on one core."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Cache = list[tuple[Tensor, Tensor] | None]


class Tiny(nn.Module):
    """Vocabulary V, at most `length` positions; width 32, two heads, pre-norm."""

    def __init__(self, vocab: int, length: int, *, layers: int = 1, width: int = 32, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.token, self.place = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocab)
        nn.init.normal_(self.token.weight, std=0.3)
        nn.init.normal_(self.place.weight, std=0.1)
        nn.init.normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)

    def empty(self) -> Cache:
        """A cache without keys."""
        return [None] * len(self.qkv)

    def forward(self, ids_BT: Tensor, cache: Cache | None = None, start: int = 0) -> Tensor:
        """Logits [B, T, V]; with a cache, of tokens that begin at position `start`."""
        batch, length = ids_BT.shape
        x = self.token(ids_BT) + self.place(torch.arange(start, start + length))
        for layer, (qkv, out, before, mlp) in enumerate(zip(self.qkv, self.out, self.before, self.mlp, strict=True)):
            q, k, v = qkv(before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            if cache is not None:
                held = cache[layer]
                if held is not None:
                    k, v = torch.cat([held[0], k], 2), torch.cat([held[1], v], 2)
                cache[layer] = (k, v)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=start == 0 and length > 1)
            x = x + out(mixed.transpose(1, 2).reshape(batch, length, -1))
            x = x + mlp(x)
        return self.head(self.last(x))


def draw(logits_BV: Tensor) -> Tensor:
    """One sampled token per row [B]."""
    return torch.distributions.Categorical(logits=logits_BV, validate_args=False).sample()


def logprobs(model: Tiny, ids_BT: Tensor) -> Tensor:
    """log p of each token [B, T]; the first has none and is 0."""
    predicted = model(ids_BT[:, :-1]).log_softmax(-1).gather(2, ids_BT[:, 1:, None])[..., 0]
    return F.pad(predicted, (1, 0))
