"""Attention by torch's scaled_dot_product_attention, which says which of its kernels ran."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .errors import InvalidArgumentError, UnsupportedError

# In the order in which the others are tried where the one that was asked for cannot run.
_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
             "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
_NAMES = {int(backend): name for name, backend in _BACKENDS.items()}


class ScaledDotProductAttention(nn.Module):
    """softmax(query @ key^T * scale + mask) @ value, by the kernel that torch has for this device, dtype, head size and mask.

        attention = headrace.ScaledDotProductAttention()
        out = attention(query, key, value, is_causal=True)
        attention.ran                                         # "flash", "efficient", "cudnn" or "math"

    kernel: "auto" leaves the choice to torch; "flash", "efficient" or "cudnn" is taken where it can run, else another, which `ran`
        says; "math" is the formula by single operators, for comparison. Flash and memory-efficient attention take memory in
        proportion to the sequence's length, the formula to its square. On the CPU there are flash and math; flash takes no dropout
        and no mask that requires gradients.
    dropout: share of the attention weights that training sets to 0.
    scale: None is 1 / sqrt(E).

    `ran` is the kernel of the last forward, by torch's own function of choice, asked as forward itself asks it: None before the
    first, and on devices that torch has no such choice for. A forward within torch.compile leaves it as it is. It costs a few
    microseconds.

    It has no parameters. A kernel by name is asked for by torch's switches, which the whole process shares, for the time of the call:
    several threads at once must not use one. "auto" switches nothing.
    """

    ran: str | None

    def __init__(self, kernel: str = "auto", dropout: float = 0.0, scale: float | None = None) -> None:
        super().__init__()
        if kernel != "auto" and kernel not in _BACKENDS:
            raise InvalidArgumentError(f"attention: kernel: wanted auto, {', '.join(_BACKENDS)}, found {kernel!r}")
        if not 0 <= dropout < 1:
            raise InvalidArgumentError(f"attention: dropout: wanted at least 0 and below 1, found {dropout!r}")
        if scale is not None and not math.isfinite(scale):
            raise InvalidArgumentError(f"attention: scale: wanted a finite number, found {scale!r}")
        self.kernel, self.dropout, self.scale = kernel, dropout, scale
        self.ran = None

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
                is_causal: bool = False, *, key_padding_mask: torch.Tensor | None = None, enable_gqa: bool = False) -> torch.Tensor:
        """query: (N, heads, L, E), or (N, L, E). key: (N, heads, S, E). value: (N, heads, S, V). Returns (N, heads, L, V).

        attn_mask: of a shape that broadcasts to (N, heads, L, S). bool: True takes part. Floating: added to the scores.
        is_causal: position i sees positions 0 to i, instead of an attn_mask.
        key_padding_mask: (N, S). bool: True is padding, which no query sees, as nn.MultiheadAttention has it. Floating: added to the
            scores.
        enable_gqa: key and value have fewer heads, each for several of query's.

        InvalidArgumentError: masks that contradict each other or have another shape. What torch refuses is torch's RuntimeError.
        """
        mask = _joined_mask(query, key, attn_mask, is_causal, key_padding_mask)
        causal = is_causal and mask is None
        dropout = self.dropout if self.training else 0.0
        # The cast that autocast makes within the call, made before: what is chosen goes by the type.
        query, key, value, mask = _cast(query.device.type, query, key, value, mask)
        with self._switches():
            if not is_compiling():
                self.ran = _choice(query, key, value, mask, dropout, causal, self.scale, enable_gqa)
            return functional.scaled_dot_product_attention(query, key, value, mask, dropout, causal, scale=self.scale,
                                                           enable_gqa=enable_gqa)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel!r}, dropout={self.dropout}, scale={self.scale}, ran={self.ran!r}"

    def _switches(self) -> contextlib.AbstractContextManager:
        if self.kernel == "auto":
            return contextlib.nullcontext()
        if self.kernel == "math":
            return sdpa_kernel([SDPBackend.MATH])
        return sdpa_kernel([_BACKENDS[self.kernel], *_BACKENDS.values()], set_priority=True)


class MultiheadAttention(nn.MultiheadAttention):
    """nn.MultiheadAttention, with the same arguments, parameters and state_dict, by ScaledDotProductAttention.

        layer.self_attn = headrace.MultiheadAttention(512, 8, batch_first=True)
        layer.self_attn.ran                                   # "flash"

    need_weights is False unless it is given, so that forward returns (output, None): the attention weights are what the fused kernels
    do not compute. With need_weights=True it is nn.MultiheadAttention's forward, and `ran` is None. is_causal needs no attn_mask.

    kernel: as of ScaledDotProductAttention. The other arguments are nn.MultiheadAttention's. UnsupportedError: add_bias_kv or
    add_zero_attn.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, add_bias_kv: bool = False,
                 add_zero_attn: bool = False, kdim: int | None = None, vdim: int | None = None, batch_first: bool = False,
                 device: torch.device | str | None = None, dtype: torch.dtype | None = None, *, kernel: str = "auto") -> None:
        if add_bias_kv or add_zero_attn:
            raise UnsupportedError("attention: add_bias_kv and add_zero_attn are nn.MultiheadAttention's alone")
        super().__init__(embed_dim, num_heads, dropout, bias, kdim=kdim, vdim=vdim, batch_first=batch_first, device=device, dtype=dtype)
        self.attention = ScaledDotProductAttention(kernel, dropout)

    @property
    def ran(self) -> str | None:
        """The kernel of the last forward: ScaledDotProductAttention.ran."""
        return self.attention.ran

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_padding_mask: torch.Tensor | None = None,
                need_weights: bool = False, attn_mask: torch.Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Shapes, masks and their senses as of nn.MultiheadAttention: of an attn_mask of bools, True is masked out. With is_causal an
        attn_mask is taken to be the causal one."""
        if need_weights:
            self.attention.ran = None
            return super().forward(query, key, value, key_padding_mask, True, attn_mask, average_attn_weights, is_causal)
        is_batched = query.dim() == 3
        if not is_batched:
            inputs = [tensor.unsqueeze(0) for tensor in (query, key, value)]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif self.batch_first:
            inputs = [query, key, value]
        else:
            inputs = [tensor.transpose(0, 1) for tensor in (query, key, value)]
        is_one = query is key and key is value
        projected = self._projected_at_once(inputs[0]) if is_one and self._qkv_same_embed_dim else self._projected(*inputs)
        heads = [tensor.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for tensor in projected]
        mask = None if is_causal else self._taking_part(attn_mask, len(inputs[0]))
        mixed = self.attention(*heads, mask, is_causal, key_padding_mask=key_padding_mask)
        output = self.out_proj(mixed.transpose(1, 2).flatten(-2))
        if not is_batched:
            return output.squeeze(0), None
        return output if self.batch_first else output.transpose(0, 1), None

    def _projected_at_once(self, inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return functional.linear(inputs, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)

    def _projected(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        if self._qkv_same_embed_dim:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [functional.linear(*operands) for operands in zip(inputs, weights, biases)]

    def _taking_part(self, mask: torch.Tensor | None, batch: int) -> torch.Tensor | None:
        """nn.MultiheadAttention's mask in the sense and shape of ScaledDotProductAttention."""
        if mask is None:
            return None
        if mask.dim() == 3:  # (N * heads, L, S)
            mask = mask.unflatten(0, (batch, self.num_heads))
        return ~mask if mask.dtype == torch.bool else mask


def _choice(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, dropout: float, causal: bool,
            scale: float | None, enable_gqa: bool) -> str | None:
    """The kernel that scaled_dot_product_attention takes for the same arguments: what it asks itself."""
    try:
        choice = torch._fused_sdp_choice(query, key, value, mask, dropout, causal, scale=scale, enable_gqa=enable_gqa)
    except NotImplementedError:  # Of the dispatcher: this device has no such choice.
        return None
    return _NAMES.get(choice)


def _joined_mask(query: torch.Tensor, key: torch.Tensor, attn_mask: torch.Tensor | None, is_causal: bool,
                 padding: torch.Tensor | None) -> torch.Tensor | None:
    """None: there is no mask, or the causal one alone, for which kernels need none."""
    if is_causal and attn_mask is not None:
        raise InvalidArgumentError("attention: wanted is_causal or attn_mask, found both")
    if padding is None:
        return attn_mask
    if padding.shape != (len(query), key.shape[-2]):
        raise InvalidArgumentError(f"attention: key_padding_mask: wanted the shape {(len(query), key.shape[-2])}, "
                                   f"found {tuple(padding.shape)}")
    of_each_key = padding[(slice(None), *[None] * (query.dim() - 2))]  # (N, 1, 1, S)
    masks = [attn_mask, ~of_each_key if padding.dtype == torch.bool else of_each_key]
    if is_causal:
        masks.append(torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril())
    allowed, added = None, None
    for mask in masks:
        if mask is None:
            continue
        if mask.dtype == torch.bool:
            allowed = mask if allowed is None else allowed & mask
        else:
            added = mask if added is None else added + mask
    if added is None or allowed is None:
        return allowed if added is None else added
    return torch.where(allowed, added, -math.inf)


def _cast(device: str, *tensors: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """As autocast casts the arguments of scaled_dot_product_attention, where it is on."""
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(tensor.to(dtype) if tensor is not None and tensor.is_floating_point() and tensor.dtype != torch.float64 else tensor
                 for tensor in tensors)
