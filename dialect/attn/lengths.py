"""Which arrays give the lengths of sequences: the static properties of batches. Without MLIR."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lengths:
    """Which arrays give the lengths of sequences, in addition to the extents of tensors.

    Attributes:
      ragged_q: queries are [total, heads, columns] with offsets `cu_seqlens_q`; O and LSE likewise.
      ragged_k: keys and values are [total, heads, columns] with offsets `cu_seqlens_k`.
      used_q: only the first seqused_q[b] queries of sequence b exist.
      used_k: only the first seqused_k[b] keys of sequence b exist.
      cached_k: only the first cache_seqlens[b] keys of sequence b exist, and as many more as it has
        queries.
    """

    ragged_q: bool = False
    ragged_k: bool = False
    used_q: bool = False
    used_k: bool = False
    cached_k: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the index arrays, in the order of the call."""
        flags = {
            "cu_seqlens_q": self.ragged_q,
            "cu_seqlens_k": self.ragged_k,
            "seqused_q": self.used_q,
            "seqused_k": self.used_k,
            "cache_seqlens": self.cached_k,
        }
        return tuple(name for name, wanted in flags.items() if wanted)

    @property
    def short_name(self) -> str:
        """A short form for kernel names; empty for dense batches."""
        flags = (self.ragged_q, self.ragged_k, self.used_q, self.used_k, self.cached_k)
        labels = ("rq", "rk", "uq", "uk", "ck")
        return "".join(label for label, wanted in zip(labels, flags, strict=True) if wanted)

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the scalars that bound the lengths."""
        flags = {"max_seqlen_q": self.ragged_q, "max_seqlen_k": self.ragged_k}
        return tuple(name for name, wanted in flags.items() if wanted)


DENSE = Lengths()
