"""The triton kernels in triton's own interpreter: the shared tests of the loss, run once more in a process made for it.

The interpreter must be chosen before the kernels are imported, and would be chosen for the whole process: hence another one.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from loss_cases import IMPLS, assert_no_worse, call, made

from distill_core.errors import LossInputError

HERE = Path(__file__).parent
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
SHARED = sorted(path for path in HERE.glob("test_*.py") if path.name != "test_aot.py")


@pytest.mark.skipif(IS_INTERPRETED, reason="this is the inner process")
def test_shared_tests_in_the_interpreter():
    pytest.importorskip("triton")
    command = [sys.executable, "-m", "pytest", "-q", "-k", "triton", "-p", "no:cacheprovider", *map(str, SHARED)]
    # the interpreter computes what a GPU would skip: infinite minus infinite, in numpy, with a warning
    command += ["-W", "ignore::RuntimeWarning"]
    done = subprocess.run(
        command, cwd=HERE.parent.parent, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-4000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 150, done.stdout[-500:]


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs the interpreter")
@pytest.mark.parametrize("softcap", [None, 4.0])
def test_triton_rows_longer_than_a_block(softcap):
    """Two blocks of 4,096 and a short third, the largest logit in any of them."""
    case = made(n=6, v=9000, d=8, k=100, temperature=2.0, dtype=torch.float32)
    assert_no_worse(case, "triton", chunk_tokens=4, temperature=2.0, ce_weight=0.5, logit_softcap=softcap)


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs the interpreter")
@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (1, 7), (1, 100), *(pytest.param(n, k, marks=pytest.mark.slow) for n in (31, 33) for k in (1, 7, 100))]
)
def test_triton_at_a_vocabulary_of_50257(n, k):
    """GPT-2's: twelve whole blocks and a short one, rows that do not start where the last one ended."""
    case = made(n=n, v=50257, d=3, k=k, temperature=2.0, dtype=torch.float32)
    assert_no_worse(case, "triton", chunk_tokens=20, temperature=2.0, ce_weight=0.5)


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs the interpreter")
def test_triton_keeps_a_diverged_student_visible():
    """A NaN in the hidden states comes out as NaN, not as a missing entry."""
    case = made(dtype=torch.float32)
    case.hidden_ND[2, 1] = float("nan")
    student = case.student()
    loss = call(case, student, impl="triton").loss
    loss.backward()
    assert loss.isnan()
    assert student[0].grad[2].isnan().all()


@pytest.mark.skipif(not IS_INTERPRETED, reason="needs the interpreter")
def test_triton_refuses_float64():
    assert "triton" in IMPLS
    case = made()
    with pytest.raises(LossInputError, match="impl='triton' computes in float32"):
        call(case, case.student(), impl="triton")
