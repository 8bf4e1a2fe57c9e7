import subprocess

import pytest

from dra_driver.commands.main import main
from dra_driver.commands.parser import COMMANDS, build_parser, commands_of, flags_of


@pytest.fixture
def bash(capsys, tmp_path):
    """Asks bash what it would offer for the words typed so far."""
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)

    def offered(*words):
        quoted = " ".join(f"'{word}'" for word in words)
        ask = (
            f"source {script}; COMP_WORDS=(dra-driver {quoted}); COMP_CWORD={len(words)}; "
            '_shtab_dra_driver; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=30, check=True, cwd=tmp_path)
        return done.stdout.split()

    return offered


def test_bash_completes_commands(bash):
    assert bash("va") == ["validate"]


def test_bash_completes_the_flags_of_a_command(bash):
    assert bash("run", "--gpu-") == ["--gpu-control", "--gpu-tool-timeout"]


def test_bash_completes_the_choices_of_a_flag(bash):
    assert bash("inventory", "-o", "") == ["table", "json", "yaml", "slices"]


def test_bash_completes_files(bash, tmp_path):
    (tmp_path / "claim.yaml").touch()

    assert bash("validate", "cl") == ["claim.yaml"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_each_shell_knows_every_command(capsys, shell):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in COMMANDS)


def test_every_command_offers_help_and_more():
    parsers = commands_of(build_parser())

    assert list(parsers) == list(COMMANDS)
    assert all("--help" in flags_of(parser) for parser in parsers.values())
