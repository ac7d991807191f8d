"""Classes of work: by what surrounds an operator, by what launched a kernel, and else by its name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from allpull.schema.operators import WorkClass
from allpull.traces.operators import Event, Sums, summed, work_times
from allpull.traces.work_class import of_kernel, of_operator

REAL = Path(__file__).parent / "real"


def read(name: str) -> Sums:
    return work_times(REAL.resolve(), name, 64 << 20)


def shares(sums: Sums) -> dict[WorkClass, float]:
    """Class → share of the device's time."""
    times: dict[WorkClass, float] = {}
    for work, (_, seconds) in sums.items():
        if work.kind in {"kernel", "copy"}:
            times[work.work] = times.get(work.work, 0.0) + seconds
    return {name: seconds / sum(times.values()) for name, seconds in times.items()}


def test_resnet_on_two_gpus() -> None:
    """A trace of ResNet-50 on A100s, against the file: its categories, and the ids by which it connects events."""
    found, events = (
        shares(read("nccl_data.json.gz")),
        json.loads(gzip.decompress((REAL / "nccl_data.json.gz").read_bytes())),
    )
    device, launchers = [], {}
    for one in events["traceEvents"]:
        if one.get("cat") in {"kernel", "gpu_memcpy", "gpu_memset"}:
            device.append((one["name"], one["args"].get("External id"), one["dur"]))
        elif one.get("cat") == "cpu_op":
            launchers[one["args"]["External id"]] = one["name"]
    total = sum(length for *_, length in device)
    named = {
        "communication": sum(length for name, _, length in device if name.startswith("nccl")),
        "convolution": sum(length for _, number, length in device if "conv" in launchers.get(number, "")),
        "norm": sum(length for name, number, length in device if "batch_norm" in launchers.get(number, "")),
    }
    for name, length in named.items():  # and a little more, of operators that these call
        assert length / total - 1e-9 <= found[name] <= length / total + 0.03  # type: ignore[index]  # names of classes
    assert sorted(found, key=lambda name: -found[name])[:4] == ["convolution", "communication", "norm", "elementwise"]


def test_a_gemm_that_a_convolution_launched_is_a_convolution() -> None:
    sums = read("nccl_data.json.gz")
    gemms = {
        work.work: seconds
        for work, (_, seconds) in sums.items()
        if "cutlass_80_tensorop_s1688gemm_256x64_16x4_nn" in work.name
    }
    assert set(gemms) == {"convolution"}
    assert (
        of_kernel("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>", None) == "matrix product"
    )


def test_an_older_trace_without_ids_of_operators() -> None:
    found = shares(read("sampled_rank-0.json.gz"))
    assert found["communication"] > 0.6
    assert found["matrix product"] > 0.1
    assert "embedding" in found


def test_rocm() -> None:
    found = shares(read("mi250_minitoy_train_ROCm6_2_kineto.json.gz"))
    assert {"matrix product", "copy", "elementwise", "optimizer", "loss"} == set(found)


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("aten::conv2d", "convolution"),
        ("autograd::engine::evaluate_function: ConvolutionBackward0", "convolution"),
        ("aten::addmm", "matrix product"),
        ("aten::bmm", "matrix product"),
        ("AddmmBackward0", "matrix product"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("aten::native_batch_norm_backward", "norm"),
        ("aten::native_layer_norm", "norm"),
        ("aten::max_pool2d_with_indices", "pooling"),
        ("aten::nll_loss_forward", "loss"),
        ("aten::_log_softmax", "loss"),
        ("aten::embedding_dense_backward", "embedding"),
        ("aten::relu_", "elementwise"),
        ("aten::threshold_backward", "elementwise"),
        ("aten::_to_copy", "copy"),
        ("aten::cat", "copy"),
        ("aten::sum", "reduction"),
        ("aten::_foreach_add_", "optimizer"),
        ("aten::_fused_adamw_", "optimizer"),
        ("c10d::allreduce_", "communication"),
        ("torch::distributed::reducer::mul_out", "communication"),
        ("aten::convert_me", "other"),
        ("aten::as_strided", "other"),
    ],
)
def test_operators_by_name(name: str, work: WorkClass) -> None:
    assert of_operator(name, []) == work


@pytest.mark.parametrize(
    ("name", "work"),
    [
        ("sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64", "convolution"),
        ("ampere_sgemm_128x64_nn", "matrix product"),
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_TNT", "matrix product"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32", "matrix product"),
        ("flash_fwd_kernel", "attention"),
        ("void cudnn::bn_bw_1C11_kernel_new<float>", "norm"),
        ("void at::native::(anonymous namespace)::max_pool_forward_nchw<float>", "pooling"),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)",
            "optimizer",
        ),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("Memset (Device)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise"),
        ("triton_poi_fused_add_relu_0", "elementwise"),
        ("triton_red_fused_native_layer_norm_2", "norm"),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", "reduction"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("my_kernel", "other"),
    ],
)
def test_kernels_by_name(name: str, work: WorkClass) -> None:
    assert of_kernel(name, None) == work


def event(kind: str, name: str, begin: float, length: float, correlation: int | None = None) -> Event:
    return Event(kind=kind, name=name, thread="1", begin=begin, length=length, correlation=correlation)  # type: ignore[arg-type]


def test_the_part_of_a_step_decides_for_what_is_in_it() -> None:
    events = [
        event("part", "Optimizer.step#SGD.step", 0, 10),
        event("operator", "aten::mul_", 1, 2),
        event("launch", "cudaLaunchKernel", 2, 0.5, correlation=7),
        event("part", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 20, 10),
        event("operator", "aten::stack", 21, 4),
        event("operator", "aten::mul", 40, 2),
        event("launch", "cudaLaunchKernel", 41, 0.5, correlation=8),
        event("kernel", "elementwise_kernel", 50, 3, correlation=7),
        event("kernel", "elementwise_kernel", 60, 5, correlation=8),
    ]
    found = {(work.kind, work.name, work.work): round(seconds * 1e6) for work, (_, seconds) in summed(events).items()}
    assert found == {
        ("operator", "aten::mul_", "optimizer"): 2,
        ("operator", "aten::stack", "data"): 4,
        ("operator", "aten::mul", "elementwise"): 2,
        ("kernel", "elementwise_kernel", "optimizer"): 3,
        ("kernel", "elementwise_kernel", "elementwise"): 5,
    }
