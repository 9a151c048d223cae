"""Torch's flags that a step can read: the default type, switches of its libraries, and modes of this thread."""

from __future__ import annotations

from collections.abc import Callable

import torch

from seqloom.core.precision import read_precision

_DEVICES = ("cpu", "cuda")
_PRECISIONS = (("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"),
               ("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"))  # fmt: skip
# Functions of torch's C library; those that this version of torch lacks are skipped.
_NAMES = (
    "get_default_dtype", "_get_deterministic_algorithms", "_get_deterministic_algorithms_warn_only",
    "_get_deterministic_fill_uninitialized_memory", "_get_float32_matmul_precision", "_get_cudnn_enabled",
    "_get_cudnn_benchmark", "_get_cudnn_deterministic", "_get_cudnn_allow_tf32", "_get_cublas_allow_tf32",
    "_get_cublas_allow_fp16_reduced_precision_reduction", "_get_cublas_allow_bf16_reduced_precision_reduction",
    "_get_cublas_allow_fp16_accumulation", "_get_mkldnn_enabled", "_get_mkldnn_deterministic", "_get_nnpack_enabled",
    "_get_math_sdp_enabled", "_get_flash_sdp_enabled", "_get_mem_efficient_sdp_enabled", "_get_cudnn_sdp_enabled",
    "_get_overrideable_sdp_enabled", "_get_math_sdp_allow_fp16_bf16_reduction", "_get_qengine", "get_num_threads",
    "get_num_interop_threads", "is_inference_mode_enabled", "is_anomaly_enabled", "is_anomaly_check_nan_enabled",
    "is_autocast_cache_enabled", "_get_warnAlways",
    "_is_tracing",
)  # fmt: skip
_GETTERS: tuple[Callable[[], object], ...] = tuple(getattr(torch._C, n) for n in _NAMES if hasattr(torch._C, n))
NAMES = frozenset(_NAMES) | {
    "is_autocast_enabled", "is_autocast_cpu_enabled", "get_autocast_dtype", "get_autocast_cpu_dtype",
    "get_autocast_gpu_dtype", "_get_fp32_precision_getter",
}  # fmt: skip


def read_flags() -> tuple[object, ...]:
    """Return the values of all flags."""
    autocast = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
    precisions = [read_precision(*names) for names in _PRECISIONS]
    plain = [value if type(value) in (bool, int, str, torch.dtype) else str(value) for value in map(_call, _GETTERS)]
    return (*plain, *autocast, *precisions)


def _call(getter: Callable[[], object]) -> object:
    return getter()
