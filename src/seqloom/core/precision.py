"""Number types: autocast, and the defaults for new parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor
from torch.types import Device


def _read_tf32(backend: str, operator: str) -> str:
    """Return the precision of float32 products in torch 2.8, which has one switch for each library."""
    if backend == "mkldnn":
        allowed = torch._C._get_onednn_allow_tf32()
    elif operator == "matmul":
        allowed = torch._C._get_cublas_allow_tf32()
    else:
        allowed = torch._C._get_cudnn_allow_tf32()
    return "tf32" if allowed else "ieee"


# The precision of float32 products in an operator ("matmul", "rnn") of a backend ("cuda"), such as "ieee" or "tf32".
read_precision: Callable[[str, str], str] = getattr(torch._C, "_get_fp32_precision_getter", _read_tf32)


def autocast_dtype(device: str) -> torch.dtype | None:
    """Return the type in which autocast runs products on this kind of device; None if autocast is off."""
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def find_product_type(x: Tensor) -> torch.dtype:
    """Return the type in which products of a floating-point input run: autocast's, or its own."""
    return autocast_dtype(x.device.type) or x.dtype


def numeric_flags() -> tuple[object, ...]:
    """Return every flag of torch that changes the results of a product, as part of a cache key.

    A recorded CUDA graph or a prepared plan repeats what torch did under the flags of its first call.
    """
    return *product_flags(), autocast_dtype("cuda"), autocast_dtype("cpu")


def product_flags() -> tuple[object, ...]:
    """Return the flags of `numeric_flags` that apply while autocast is off."""
    return (
        read_precision("cuda", "matmul"),
        read_precision("cuda", "rnn"),
        torch._C._get_cudnn_enabled(),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_fp16_accumulation(),
        torch._C._get_deterministic_algorithms(),
    )


def allows_tf32() -> bool:
    """Return whether torch's flags allow tf32 (19 bits) in products of float32 on a GPU."""
    return read_precision("cuda", "matmul") == "tf32"


@cache
def has_fast_products(dtype: torch.dtype) -> bool:
    """Return whether this processor has instructions for products in a 16-bit type; else torch emulates them."""
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        tiles = torch.cpu._is_amx_tile_supported()
        vectors = torch.cpu._is_avx512_bf16_supported()
        return (tiles or vectors) if dtype == torch.bfloat16 else torch.cpu._is_amx_fp16_supported()
    query = "_is_mkldnn_bf16_supported" if dtype == torch.bfloat16 else "_is_mkldnn_fp16_supported"
    return torch.backends.mkldnn.is_available() and bool(getattr(torch.ops.mkldnn, query)())


def why_not_autocast(device: str) -> str | None:
    """Return why a scan ignores autocast and runs in the type of its weights; None if it does not."""
    dtype = autocast_dtype(device) if device == "cpu" else None
    if dtype is None or has_fast_products(dtype):
        return None
    return f"this processor has no instructions for {str(dtype).removeprefix('torch.')} products"


@contextmanager
def useful_autocast(device: str) -> Iterator[None]:
    """Switch autocast off inside if `why_not_autocast` returns a reason."""
    if why_not_autocast(device) is None:
        yield
    else:
        with torch.autocast(device, enabled=False):
            yield


@contextmanager
def parameter_defaults(device: Device, dtype: torch.dtype | None) -> Iterator[None]:
    """Create parameters on this device and of this type inside; None leaves torch's default."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device(device if device is not None else torch.get_default_device()):
            yield
    finally:
        torch.set_default_dtype(before)
