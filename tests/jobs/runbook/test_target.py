"""Targets that `--to` accepts, and the errors for others."""

from pathlib import Path

import pytest

from elmwright.jobs.runbook.target import Target, find_target, named_targets, with_current_address
from tests.support.mistakes import mistake


@pytest.fixture(autouse=True)
def config_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "elmwright").mkdir()
    return tmp_path / "elmwright" / "targets.toml"


def test_an_address_is_a_ray_cluster() -> None:
    assert find_target("http://head:8265/") == Target("ray", address="http://head:8265")
    assert find_target("local").kind == "local"


def test_named_target_comes_from_the_users_file(config_home: Path) -> None:
    config_home.write_text(
        '[lab]\nkind = "ray"\naddress = "https://head.lab:8265"\nsecrets = ["TOKEN_OF_LAB"]\n'
        '[night]\nkind = "slurm"\npartition = "gpu"\nnodes = 2\nlines = ["module load python"]\n'
    )
    assert find_target("lab").address == "https://head.lab:8265"
    assert str(find_target("lab")) == "lab"
    assert find_target("night").lines == ("module load python",)
    assert set(named_targets()) == {"lab", "night"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("labb", ("'labb'", "'lab'?")),
        ("ray", ("'ray'", "local, slurm, k8s, http://HEAD:8265")),
        ("ray://head:10001", ("http://head:8265",)),
        ("head:6379", ("http://head:8265",)),
        ("http://me:pass@head:8265", ("RAY_AUTH_TOKEN",)),
        ("http://a..b:8265", ("'http://a..b:8265'", "http://HEAD:8265")),
        ("http://.foo:8265", ("http://HEAD:8265",)),
        ("http://[::1:8265", ("http://HEAD:8265",)),
        ("http://head:port", ("http://HEAD:8265",)),
    ],
)
def test_unknown_target_is_refused_with_a_hint(
    config_home: Path, text: str, names: tuple[str, ...]
) -> None:
    config_home.write_text('[lab]\nkind = "local"\n')
    with mistake("secret" if "@" in text else "target", *names) as caught:
        find_target(text)
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[lab]\n", "[lab] needs kind"),
        ('[lab]\nkind = "slrum"\n', "'slurm'?"),
        ('[lab]\nkind = "local"\nname = "x"\n', "lab.name: "),
        ('[lab]\nkind = "ray"\n', "lab.address: "),
        ('[lab]\nkind = "slurm"\npartitoin = "x"\n', "'partition'?"),
        ('[lab]\nkind = "slurm"\nnodes = "2"\n', "lab.nodes: "),
        ('[lab]\nkind = "slurm"\nlines = "module"\n', "lab.lines: "),
        ("[lab\n", "targets.toml"),
        ('[lab]\nkind = "ray"\naddress = "http://a..b:8265"\n', "lab.address: "),
        ('[lab]\nkind = "slurm"\ntime = "abc\\n#SBATCH --exclusive"\n', "lab.time: "),
        ('[lab]\nkind = "slurm"\nnodes = -3\n', "lab.nodes: '-3'"),
        ('[lab]\nkind = "slurm"\npartition = "a\\n#SBATCH x"\n', "lab.partition: "),
        ('[lab]\nkind = "slurm"\nlines = ["a\\nb"]\n', "lab.lines: "),
        ('[lab]\nkind = "k8s"\naddress = "http://me:pass@h:1"\n', "lab.address"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_key(
    config_home: Path, text: str, name: str
) -> None:
    config_home.write_text(text)
    with mistake("target", name) as caught:
        find_target("lab")
    assert "pass@" not in str(caught.value)


@pytest.mark.parametrize("time", ["90", "90:00", "24:00:00", "7-0", "7-12:30:00", "UNLIMITED"])
def test_every_way_slurm_writes_a_time_is_taken(config_home: Path, time: str) -> None:
    config_home.write_text(f'[lab]\nkind = "slurm"\ntime = "{time}"\n')
    assert find_target("lab").time == time


def test_address_and_token_file_of_a_job_follow_the_users_file(config_home: Path) -> None:
    sent = Target("ray", name="lab", address="http://old:8265", token_file="/old")  # noqa: S106
    config_home.write_text(
        '[lab]\nkind = "ray"\naddress = "http://old:8265"\ntoken_file = "/new"\n'
    )
    assert with_current_address(sent).token_file == "/new"  # noqa: S105
    config_home.write_text(
        '[lab]\nkind = "ray"\naddress = "http://new:8265"\ntoken_file = "/new"\n'
    )
    assert with_current_address(sent) == sent, "the name means another cluster now"
    config_home.write_text("[lab\n")
    assert with_current_address(sent) == sent, "it is just being edited"
    pod = Target("k8s", name="lab", volume="runs")
    config_home.write_text('[lab]\nkind = "k8s"\naddress = "http://127.0.0.1:8265"\n')
    assert with_current_address(pod) == Target("k8s", "lab", "http://127.0.0.1:8265", volume="runs")
    assert with_current_address(sent) == sent, "another kind"
