"""What the device has, asked of its driver and of the system, never of torch: an app that shows it stays light."""

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Linux control groups, version 2 and 1."""


def is_gpu(device: str) -> bool:
    """Whether a run on this device ('auto' included) would use a GPU; asks the driver, not torch."""
    if device == "auto":
        return bool(_gpus()) and not _torch_without_cuda()
    return device.startswith("cuda")


def num_gpus() -> int:
    """CUDA devices that torch would find, asked of NVIDIA's driver."""
    return 0 if _torch_without_cuda() else len(_gpus())


def _torch_without_cuda() -> bool:
    try:
        return "+cpu" in version("torch")
    except PackageNotFoundError:
        return True


def _gpus() -> list[tuple[str, int]]:
    """(name, bytes) of each GPU in torch's order; CUDA_VISIBLE_DEVICES is respected."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = (
            [str(index) for index in range(pynvml.nvmlDeviceGetCount())]
            if visible is None
            else [word.strip() for word in visible.split(",") if word.strip()]
        )
        found = []
        for name in names:
            if name == "-1":
                break
            by_index = name.isdigit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if by_index else pynvml.nvmlDeviceGetHandleByUUID(name)
            label = pynvml.nvmlDeviceGetName(handle)
            found.append((label if isinstance(label, str) else label.decode(), int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)))
        return found
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def device_limit(device: str = "auto") -> tuple[str, int]:
    """(name, bytes) of what the device has: a GPU's memory as its driver says, else RAM: the machine's, or its container's if less."""
    gpus = _gpus() if is_gpu(device) else []
    number = device.partition(":")[2]
    index = int(number) if number.isdigit() else 0
    if index < len(gpus):
        return gpus[index]
    total = psutil.virtual_memory().total
    for path in CONTAINER_LIMITS:
        if path.is_file() and (said := path.read_text().strip()).isdigit() and int(said) < total:
            return "this container's memory", int(said)
    return "this machine's memory", total
