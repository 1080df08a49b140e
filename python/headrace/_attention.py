"""Attention by torch's scaled_dot_product_attention, as modules that say which kernel ran."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import nn
from torch.compiler import is_compiling
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from .errors import InvalidArgumentError, UnsupportedError

# In the order in which torch tries the others if the one asked for cannot run.
_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION,
             "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}
_NAMES = {int(backend): name for name, backend in _BACKENDS.items()}


class ScaledDotProductAttention(nn.Module):
    """torch's scaled_dot_product_attention, softmax(query @ key^T * scale + mask) @ value, as a module that says which of torch's kernels
    computed it.

        attention = headrace.ScaledDotProductAttention()
        out = attention(query, key, value, is_causal=True)
        attention.ran                                         # "flash", "efficient", "cudnn" or "math"

    kernel: "auto": torch chooses by device, dtype, head size and mask. "flash", "efficient" or "cudnn": used where it can run, otherwise
        another one, and `ran` says which. "math": the formula in single operators, for comparison. The memory of flash and efficient
        grows linearly with the length of the sequence, that of math with its square. The CPU has flash and math; with dropout in
        training, or with a mask that requires gradients, it uses math.
    dropout: the part of the attention weights that training sets to 0, at least 0 and below 1.
    scale: None: 1 / sqrt(E).

    `ran` is the kernel of the last forward: the answer of torch's own selection function, called with the same arguments, which takes a
    few microseconds. None before the first forward, and on devices without such a choice. Inside torch.compile it keeps its value.

    The module has no parameters. A kernel that is named is selected by torch's switches, which the whole process shares, for the time
    of the call: do not call such modules from several threads at once. "auto" touches no switch.
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

        attn_mask: broadcasts to (N, heads, L, S). bool: True takes part. Floating point: added to the scores.
        is_causal: position i attends to positions 0 to i. Not together with attn_mask.
        key_padding_mask: (N, S). bool: True where there is padding, as in nn.MultiheadAttention. Floating point: added to the scores.
        enable_gqa: key and value have fewer heads, each of which serves several of query's.

        InvalidArgumentError: is_causal together with attn_mask, or a key_padding_mask of another shape. What torch itself refuses is a
        RuntimeError.
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
    """Replaces nn.MultiheadAttention, with the same arguments, parameters and state_dict; computed by ScaledDotProductAttention.

        layer.self_attn = headrace.MultiheadAttention(512, 8, batch_first=True)
        layer.self_attn.ran                                   # "flash"

    forward returns (output, None) unless need_weights=True: the fused kernels do not compute the attention weights. With
    need_weights=True it runs nn.MultiheadAttention's own forward, and `ran` is None. is_causal needs no attn_mask.

    kernel: as in ScaledDotProductAttention. The other arguments are nn.MultiheadAttention's. UnsupportedError: add_bias_kv or
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
        """The kernel of the last forward, as ScaledDotProductAttention.ran."""
        return self.attention.ran

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, key_padding_mask: torch.Tensor | None = None,
                need_weights: bool = False, attn_mask: torch.Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Shapes and masks as in nn.MultiheadAttention: True in a bool attn_mask is masked out. With is_causal the attn_mask is ignored,
        as it can only be the causal one."""
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
