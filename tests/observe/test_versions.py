"""What a result may depend on is told as it is, and nothing is imported for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "from allpull.observe.versions import versions; import sys; told = versions()"


def _told(program: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.strip()


def test_torch_is_not_imported_to_say_its_version() -> None:
    assert _told(f"{ASK}; print('torch' in sys.modules, 'torch_cpu' in told)") == "False False"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("kernels", ["default", ""])
def test_the_vector_instructions_that_torch_uses_are_told(kernels: str) -> None:
    said = _told(
        f"import torch; {ASK}; print(told['torch_cpu'])", **({"ATEN_CPU_CAPABILITY": kernels} if kernels else {})
    )
    own = _told("import torch; print(torch.backends.cpu.get_cpu_capability())")
    assert said == ("DEFAULT" if kernels else own)
