"""The class of work that an operator or a kernel does: convolution, matrix product, norm, communication and so on.

What the program and torch state comes first: the part of a step around an operator, then the operator that launched a
kernel. A kernel's name is the last resort: cuDNN computes many convolutions with a kernel named gemm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from allpull.schema.operators import WorkClass
from allpull.traces import classify

PARTS: Mapping[classify.Mark, WorkClass] = {"optimizer": "optimizer", "input": "data"}
"""Annotated parts of a step of which all work is of one class."""
OUTER: tuple[WorkClass, ...] = ("communication", "optimizer", "data")
"""Classes of all work inside them."""
WEAK: tuple[WorkClass, ...] = ("elementwise", "copy", "reduction", "other")
"""Classes of work that is part of larger operators too; it is of their class then."""

_AUTOGRAD = re.compile(r"^autograd::engine::evaluate_function: ")
_ELEMENTWISE = (
    r"add|sub|rsub|mul|div|neg|abs|exp|log|sqrt|rsqrt|pow|where|eq|ne|lt|gt|le|ge|fill|zero|clamp\w*|relu|gelu|silu",
    r"sigmoid|tanh|threshold\w*|hardtanh|leaky_relu|elu|dropout|bernoulli|lerp|addcmul|addcdiv|nan_to_num|logical_\w+",
    r"masked_fill|sign|round|floor|ceil|reciprocal|square",
)
_REDUCTION = r"sum|mean|amax|amin|max|min|argmax|argmin|topk|sort|cumsum|norm|any|all|var|std|linalg_\w*norm"
_PRODUCT = r"(^|[:_])(add|ba)?(b|d)*(mm|mv)(_|$|out|back)|matmul|linear(_|$|back)|einsum|tensordot|scaled_mm"
_COPY = r"(^|[:_])(copy_?|to|clone|contiguous|cat|stack|pad|item|local_scalar_dense)(_|$|back)|_to_copy|flatten_dense"
_OPERATORS: Sequence[tuple[WorkClass, str]] = (
    ("communication", r"^(c10d|_c10d_functional|nccl|gloo|rccl|ucc):|record_param_comms|torch\W+distributed"),
    ("optimizer", r"_foreach_|_fused_(sgd|adam|adagrad)|^optimizer\."),
    ("data", r"dataloader"),
    ("convolution", r"conv(?!ert|_tbc_to)|im2col|col2im"),
    ("attention", r"scaled_dot_product|flash_att|efficient_attention|fmha"),
    ("matrix product", _PRODUCT),
    ("norm", r"(batch|layer|group|instance|rms)_?norm"),
    ("pooling", r"(max|avg|adaptive\w*|fractional\w*)_?pool|pool[123]d|pooling"),
    ("loss", r"softmax|loss|cross_entropy"),
    ("embedding", r"embedding"),
    ("copy", _COPY),
    ("reduction", rf"(^|::)({_REDUCTION})(_|$)"),
    ("elementwise", rf"(^|::)_?({'|'.join(_ELEMENTWISE)})2?(_|$)"),
)
_KERNELS: Sequence[tuple[WorkClass, str]] = (
    ("copy", r"^(memcpy|memset)"),
    ("optimizer", r"multi_tensor_apply|fused_?(adam|sgd|adagrad)|split_embedding_backward\w*_(adagrad|sgd|adam)"),
    ("attention", r"flash_|fmha|attention"),
    ("convolution", r"fprop|dgrad|wgrad|conv(?!ert)|winograd|implicit_gemm|scudnn|igemm|nchwtonhwc|nhwctonchw"),
    ("matrix product", r"gemm|cijk_|cutlass|xmma|nvjet|gemv|cublas|splitk|wgmma"),
    ("norm", r"(batch|layer|group|rms)_?norm|(^|[:_])bn_"),
    ("pooling", r"max_pool|avg_pool|pool[123]d|pooling"),
    ("loss", r"softmax|nll_loss|mse_(kernel|backward)|cross_entropy"),
    ("embedding", r"embedding"),
    ("copy", r"direct_copy|catarraybatchedcopy|copy_kernel|transpose|permute"),
    ("reduction", r"reduce|cub::|radixsort|triton_(red|per)_"),
    ("elementwise", r"elementwise|functor|triton_poi_|dropout|distribution"),
)


def of_operator(name: str, around: Sequence[WorkClass]) -> WorkClass:
    """The class of an operator inside others of the classes ``around``, the outermost first.

    >>> of_operator("aten::mul", []), of_operator("aten::mul", ["optimizer"]), of_operator("aten::mm", ["convolution"])
    ('elementwise', 'optimizer', 'convolution')
    """
    own = _first(_OPERATORS, _AUTOGRAD.sub("", name)[:200])
    for outer in around:
        if outer in OUTER:
            return outer
    if own in OUTER:
        return own
    return next((one for one in reversed(around) if one == "convolution" or (own in WEAK and one not in WEAK)), own)


def of_kernel(name: str, launcher: WorkClass | None) -> WorkClass:
    """The class of a kernel, or of a copy by the device; ``launcher``: that of the operator that launched it.

    >>> of_kernel("cutlass_80_tensorop_s1688gemm_64x64", "convolution"), of_kernel("cutlass_80_s1688gemm_64x64", None)
    ('convolution', 'matrix product')
    >>> of_kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "elementwise")
    'communication'
    """
    if classify.collective_kernel(name, {})[0]:
        return "communication"
    if launcher is not None and launcher not in WEAK:
        return launcher
    own = _first(_KERNELS, name[:400])
    return own if own != "other" or launcher is None else launcher


def _first(patterns: Sequence[tuple[WorkClass, str]], name: str) -> WorkClass:
    return next((one for one, pattern in patterns if re.search(pattern, name, re.IGNORECASE)), "other")
