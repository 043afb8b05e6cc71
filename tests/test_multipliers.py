"""Which library multiplies: only one that keeps float32's digits, on a processor whose widest units the other one leaves unused."""

import pytest
import torch

from distill_core import multipliers


@pytest.fixture
def fresh():
    multipliers.is_onednn_faster.cache_clear()
    yield
    multipliers.is_onednn_faster.cache_clear()


def precision():
    return torch.backends.mkldnn.matmul.fp32_precision


def test_the_process_gets_its_switch_back():
    before = precision()
    with multipliers.by_onednn(is_on=False):
        assert precision() == before

    def fail():
        with multipliers.by_onednn(is_on=True):
            assert precision() == "bf16"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert precision() == before


@pytest.mark.parametrize(
    ("vendor", "capability", "keeps", "expected"),
    [
        ("AuthenticAMD", "AVX512", True, True),
        ("AuthenticAMD", "AVX512", False, False),
        ("GenuineIntel", "AVX512", True, False),
        ("AuthenticAMD", "AVX2", True, False),
    ],
)
def test_where_it_is_used(monkeypatch, fresh, vendor, capability, keeps, expected):
    monkeypatch.setattr(multipliers, "processor_vendor", lambda: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(multipliers, "_keeps_float32", lambda: keeps)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    assert multipliers.is_onednn_faster() is expected


def test_rounded_inputs_are_noticed(monkeypatch):
    """What a CPU with matrix units would do with the switch on: float32 inputs rounded, the float64 truth not."""
    real = torch.Tensor.__matmul__

    def rounding(a, b):
        return real(a, b) if a.dtype == torch.float64 else real(a.bfloat16().float(), b.bfloat16().float())

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not multipliers._keeps_float32()


def test_the_vendor_is_read(monkeypatch, tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\n")
    monkeypatch.setattr(multipliers, "CPU_INFO", info)
    assert multipliers.processor_vendor() == "AuthenticAMD"
    monkeypatch.setattr(multipliers, "CPU_INFO", tmp_path / "none")
    monkeypatch.setattr(multipliers.platform, "processor", lambda: "Intel64 Family 6, GenuineIntel")
    assert multipliers.processor_vendor() == "Intel64 Family 6, GenuineIntel"
