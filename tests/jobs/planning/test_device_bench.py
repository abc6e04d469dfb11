"""`elmwright bench`: what it prints, and how it is used wrongly."""

import io
import json
from contextlib import redirect_stdout

import pytest
import torch

from elmwright.jobs.cli.command import main
from tests.support.mistakes import mistake

pytestmark = pytest.mark.slow(8)
TINY = (
    *("--set", "model.dim=32", "--set", "model.projection_dim=16", "--set", "train.lanes=4"),
    *("--set", "train.negatives=64"),
)


def bench(*arguments: str) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main(["bench", "demo", *TINY, *arguments]) == 0
    return out.getvalue()


def test_bench_prints_speed_arithmetic_and_what_a_gpu_would_be_asked() -> None:
    lines = bench("--steps", "2").splitlines()
    assert [line.split()[0] for line in lines] == [
        *("machine", "computes", "speed", "arithmetic", "starts", "waits"),
    ]
    assert "fp32 on cpu" in lines[1]
    assert "tokens/s, 2 steps" in lines[2]
    assert "1 per step for a GPU; 0 copies" in lines[5]


def test_bench_gives_the_same_as_json_and_in_another_precision() -> None:
    result = json.loads(bench("--steps", "1", "--json", "--set", "train.precision=bf16"))
    assert result["precision"] == "bf16"
    assert result["waits"] == 1
    assert result["operations_on_gpu"] > 100
    assert result["tokens_per_s"] > 0
    assert result["utilisation"] == pytest.approx(
        result["flops_per_s"] / result["peak_flops_per_s"]
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_bench_of_a_gpu_that_is_not_there_is_one_sentence() -> None:
    with mistake("device", "sees no GPU here"):
        from elmwright.jobs.config.toml_file import load_config
        from elmwright.jobs.planning.device_bench import bench_device

        bench_device(load_config("demo"), "cuda", 1)


def test_no_steps_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "demo", "--steps", "0"]) == 2
    assert "--steps 0: at least one step is needed" in capsys.readouterr().err
