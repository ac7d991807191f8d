"""Collectives and parts of a step are told by metadata first, and by names of every age."""

from __future__ import annotations

import pytest

from allpull.traces import classify

KERNELS = {
    "ncclAllReduceRingLLKernel_sum_f32(ncclColl)": "all_reduce",  # NCCL 2.4
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",  # 2.17
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "send_recv",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)": "broadcast",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",  # 2.23
    "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
    "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
    "ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce",
    "ncclSymDevKernel_AllReduce_AGxLL_R(ncclSymDevArgs)": "all_reduce",
    "nccldevkernel_allgather_ring_ll": "all_gather",
    "rcclKernel_AllReduce": "all_reduce",
    "mscclKernel_Sum_float_LL_false": None,
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)": None,  # RCCL: one kernel for all
    "multimem_all_reduce_kernel<float>": "all_reduce",
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_known_by_their_names(name: str) -> None:
    assert classify.collective_kernel(name, {}) == (True, KERNELS[name])


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float> >(int)",
        "void cudnn::bn_bw_1C11_kernel_new<float>(ncclLikeArgument*)",
        "void gatherTopK<float, unsigned int>(int)",
        "broadcast_tensors",
        "",
    ],
)
def test_kernels_that_compute_are_no_collectives(name: str) -> None:
    assert classify.collective_kernel(name, {}) == (False, None)


def test_metadata_go_before_names() -> None:
    said = {"Collective name": "_reduce_scatter_base"}
    assert classify.collective_kernel("ncclDevKernel_AllReduce_Sum_f32", said) == (True, "reduce_scatter")
    assert classify.collective_kernel("an unheard of name", said) == (True, "reduce_scatter")
    assert classify.collective_kernel("an unheard of name", {"Collective name": 7}) == (False, None)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("c10d::allgather_into_tensor_coalesced_", "all_gather"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::barrier", "barrier"),
        ("gloo:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("nccl:recv 0<-1", None),
        ("wait", None),
    ],
)
def test_operations_are_known_by_their_names(name: str, family: str | None) -> None:
    assert classify.operation(name) == family


def test_marks_of_torch_and_words_of_programs() -> None:
    said = {
        "ProfilerStep#17": ("step", 17),
        "ProfilerStep*": None,
        "ProfilerStep#1e9": None,
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__": ("input", None),
        "Optimizer.step#AdamW.step": ("optimizer", None),
        "Optimizer.zero_grad#AdamW.zero_grad": None,
        "DistributedDataParallel.forward": ("forward", None),
        "FullyShardedDataParallel.forward": ("forward", None),
        "## backward ##": ("backward", None),
        "data_loading": ("input", None),
        "Evaluate": ("evaluation", None),
        "forward and a very long story about it that nobody reads": None,
    }
    assert {name: classify.mark(name) for name in said} == said


@pytest.mark.parametrize(
    "dims", [None, [], [[-1]], [[True]], [[1.5]], [[2**60]], [[[[1]]]], "[[1]]", [[[1]] * 20_000], [[1] * 100]]
)
def test_odd_dimensions_are_no_size(dims: object) -> None:
    assert classify.elements(dims) is None


def test_sizes_are_those_of_all_tensors_of_the_first_argument() -> None:
    assert classify.elements([[[2, 3], [4], []], [9]]) == 11  # a tensor without dimensions is one number
    assert classify.elements([[0, 5]]) == 0
