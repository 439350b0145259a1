"""A model's attention layers from its `config.json`, by the names of `transformers`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from attn_mlir.errors import SpecError, shown
from attn_mlir.files import read_file
from attn_mlir.runtime.call.scalars import as_float, as_int

MAX_BYTES = 1 << 24  # of a config; those of the largest models have some thousand
FULL, WINDOW, CHUNKS = "full_attention", "sliding_attention", "chunked_attention"
KINDS = (FULL, WINDOW, CHUNKS)
SINKS = ("gpt_oss",)  # model types whose layers have sinks, which no field says
WINDOWS_EVERY = ("sliding_window_pattern", "_sliding_window_pattern")
DTYPES = {"bfloat16": "bf16", "float16": "f16"}
DEFAULT_DTYPE = "bfloat16"  # of weights that are stored in f32, or whose config says nothing


@dataclass(frozen=True)
class Layer:
    """Attention of layers of one kind, on one of the machines that share their heads.

    Attributes:
      heads, kv_heads: of the machine.
      head_dim, v_head_dim: columns of q and k, and of v, in prefill.
      dtype: bf16 or f16.
      window: keys that a query sees, itself among them; None: all.
      chunk: keys of a chunk, to which a query is confined; None: no chunks.
      cap: of the scores, by tanh; None: none.
      sinks: whether heads have a logit without a key.
      latent: columns of a row of its cache; None: keys and values.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    dtype: str
    window: int | None = None
    chunk: int | None = None
    cap: float | None = None
    sinks: bool = False
    latent: int | None = None

    def __str__(self) -> str:
        """In a line of progress."""
        sizes = f"{self.heads} heads, {self.kv_heads} of keys, {self.head_dim} columns"
        marks = [f"window {self.window}" if self.window else ""]
        marks += [f"chunks of {self.chunk}" if self.chunk else ""]
        marks += [f"scores up to {self.cap:g}" if self.cap else "", "sinks" if self.sinks else ""]
        marks += [f"latent rows of {self.latent}" if self.latent else ""]
        return ", ".join([sizes, *filter(None, marks)])


class _Config:
    """Fields of a config, each of which is checked where it is read."""

    def __init__(self, fields: Mapping[str, Any], path: Path) -> None:
        self._fields, self._path = fields, path

    def get(self, name: str) -> Any:
        """A field; None where it is absent."""
        return self._fields.get(name)

    def count(self, *names: str, otherwise: int | None = None) -> int:
        """The first of these fields that is there, an integer of at least 1.

        Raises:
          SpecError: it is none, or there is none and no other value.
        """
        name = next((x for x in names if self.get(x) is not None), None)
        if name is None:
            if otherwise is None:
                raise SpecError(f"{self._path} has no {names[0]}: it is no model's config.json")
            return otherwise
        number = as_int(self.get(name))
        if number is None or number < 1:
            got = shown(self.get(name), 40)
            raise SpecError(f"{name} of {self._path} must be an integer of at least 1, got {got}")
        return number


def layers_of(path: Path, *, tensor_parallel: int = 1) -> list[Layer]:
    """The kinds of attention layers of a model, each once, in the order of the first of each.

    Args:
      path: its `config.json`; of several models in one, the fields of `text_config` count.
      tensor_parallel: machines among which the heads of a layer are divided. Heads of keys are
        repeated where there are fewer.

    Raises:
      SpecError: there is no such file, or a field is missing or wrong; names it.
    """
    config = _Config(_read(path), path)
    heads = config.count("num_attention_heads")
    if tensor_parallel < 1 or heads % tensor_parallel:
        raise SpecError(
            f"tensor_parallel must divide num_attention_heads {heads}, got {tensor_parallel}"
        )
    kv_heads = config.count("num_key_value_heads", otherwise=heads)
    if kv_heads % tensor_parallel and tensor_parallel % kv_heads:
        raise SpecError(
            f"tensor_parallel must divide num_key_value_heads {kv_heads}, or be a multiple, got "
            f"{tensor_parallel}"
        )
    own: dict[str, Any] = {"heads": heads // tensor_parallel, "dtype": _dtype(config)}
    if config.get("kv_lora_rank") is not None:
        rope = config.count("qk_rope_head_dim")
        return [
            Layer(
                kv_heads=own["heads"],
                head_dim=config.count("qk_nope_head_dim") + rope,
                v_head_dim=config.count("v_head_dim"),
                latent=config.count("kv_lora_rank") + rope,
                **own,
            )
        ]
    columns = config.get("head_dim")
    head_dim = config.count("hidden_size") // heads if columns is None else config.count("head_dim")
    sizes: dict[str, Any] = {"kv_heads": max(kv_heads // tensor_parallel, 1), "head_dim": head_dim}
    sizes |= {"v_head_dim": config.count("v_head_dim", otherwise=head_dim)}
    cap = config.get("attn_logit_softcapping")
    if cap is not None and (cap := as_float(cap)) is None:
        got = shown(config.get("attn_logit_softcapping"), 40)
        raise SpecError(f"attn_logit_softcapping of {path} must be a number, got {got}")
    sinks = config.get("model_type") in SINKS
    kinds = dict.fromkeys(_kinds(config, path))
    windows = {FULL: None, CHUNKS: None}
    return [
        Layer(
            window=windows[kind] if kind in windows else config.count("sliding_window"),
            chunk=config.count("attention_chunk_size") if kind == CHUNKS else None,
            cap=cap or None,
            sinks=sinks,
            **own,
            **sizes,
        )
        for kind in kinds
    ]


def _read(path: Path) -> Mapping[str, Any]:
    """The fields of a config, or of its `text_config`.

    Raises:
      SpecError: it cannot be read, or is no JSON object.
    """
    try:
        fields = json.loads(read_file(path, most_bytes=MAX_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"cannot read the config {path}: {error}") from error
    if not isinstance(fields, dict):
        raise SpecError(f"the config {path} must be a JSON object, got {shown(fields, 40)}")
    whole = cast("Mapping[str, Any]", fields)
    inner = whole.get("text_config")
    return cast("Mapping[str, Any]", inner) if isinstance(inner, dict) else whole


def _dtype(config: _Config) -> str:
    name = config.get("dtype") or config.get("torch_dtype") or DEFAULT_DTYPE
    return DTYPES.get(str(name), DTYPES[DEFAULT_DTYPE])


def _kinds(config: _Config, path: Path) -> list[str]:
    """The kind of each layer; those that are no attention are left out.

    Raises:
      SpecError: no layer is attention, or `layer_types` is no list.
    """
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list):
            raise SpecError(f"layer_types of {path} must be a list, got {shown(types, 40)}")
        kinds = [str(x) for x in cast("list[Any]", types) if x in KINDS]
        if not kinds:
            raise SpecError(f"layer_types of {path} has none of {', '.join(KINDS)}")
        return kinds
    has_window = config.get("sliding_window") is not None
    if not has_window or config.get("use_sliding_window") is False:
        return [FULL]
    has_both = any(config.get(x) is not None for x in WINDOWS_EVERY)
    return [WINDOW, FULL] if has_both else [WINDOW]
