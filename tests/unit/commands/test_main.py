import os
import subprocess
import sys
import types

import pytest

import dra_driver
from dra_driver.commands import main as main_module
from dra_driver.commands.main import main
from dra_driver.commands.parser import COMMANDS, Command
from dra_driver.model.errors import ApiError, SettingError


@pytest.fixture
def command(monkeypatch):
    """Installs a command called ``probe`` that does what the test says."""

    def install(action):
        module = types.ModuleType("probe_command")
        module.configure = lambda parser: None
        module.run = action
        monkeypatch.setitem(sys.modules, "probe_command", module)
        monkeypatch.setitem(COMMANDS, "probe", Command("probe_command", "only for tests"))

    return install


def raising(error):
    def action(options):
        raise error

    return action


def test_the_exit_code_is_the_commands_own(command):
    command(lambda options: 7)

    assert main(["probe"]) == 7


@pytest.mark.parametrize(("error", "code"), [(SettingError("bad\nflag"), 2), (ApiError("no answer"), 1)])
def test_a_driver_error_ends_as_one_line_on_stderr(command, capsys, error, code):
    command(raising(error))

    assert main(["probe"]) == code
    assert capsys.readouterr() == ("", f"dra-driver: {' '.join(str(error).split())}\n")


def test_an_interrupt_is_quiet(command, capsys):
    command(raising(KeyboardInterrupt()))

    assert main(["probe"]) == 130
    assert capsys.readouterr() == ("", "")


def test_a_closed_pipe_is_quiet():
    # The reader has left before the first byte: what `dra-driver ... | head -0` does.
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "dra_driver", "inventory", "--simulated-node", "h200x8", "-o", "json"],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dra-driver {dra_driver.__version__}\n"


def test_help_shows_every_command_with_its_line(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"{name} " in out and command.summary in out for name, command in COMMANDS.items())


def test_no_command_shows_the_help_and_is_wrong_usage(capsys):
    assert main([]) == 2
    assert "a command is required" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "near"), [("rum", "run"), ("validat", "validate"), ("inventry", "inventory")])
def test_an_unknown_command_names_the_near_one(capsys, word, near):
    assert main([word]) == 2
    assert f'unknown command "{word}", did you mean {near}?' in capsys.readouterr().err


def test_an_unknown_command_that_is_like_none_lists_all(capsys):
    assert main(["xyzzy"]) == 2
    assert ", ".join(COMMANDS) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "near"),
    [
        ("--node-nam=x", "--node-name"),
        ("--kubelet-plugin-directory-path=/x", "--kubelet-plugins-directory-path"),
        ("--feature-gate=A=true", "--feature-gates"),
    ],
)
def test_an_unknown_flag_names_the_near_one(capsys, flag, near):
    assert main(["run", "--node-name=a", flag]) == 2
    assert f"unknown flag {flag.partition('=')[0]}, did you mean {near}?" in capsys.readouterr().err


def test_an_abbreviated_flag_is_unknown(capsys):
    assert main(["run", "--node=a"]) == 2
    assert "unknown flag --node" in capsys.readouterr().err


def test_a_positional_argument_where_none_is_taken_is_refused(capsys):
    assert main(["run", "--node-name=a", "extra"]) == 2
    assert 'unexpected argument "extra"' in capsys.readouterr().err


def test_a_flag_without_its_value_is_refused(capsys):
    assert main(["run", "--cdi-root"]) == 2
    assert "--cdi-root" in capsys.readouterr().err


def test_run_without_a_node_name_is_wrong_usage(capsys, monkeypatch):
    monkeypatch.delenv("NODE_NAME", raising=False)

    assert main(["run"]) == 2
    assert "--node-name is required" in capsys.readouterr().err


def test_run_hands_the_settings_to_the_driver(monkeypatch):
    seen = []
    app = types.ModuleType("dra_driver.app")
    app.run = lambda settings: seen.append(settings) or 3
    monkeypatch.setitem(sys.modules, "dra_driver.app", app)
    monkeypatch.setattr(dra_driver, "app", app, raising=False)

    code = main(["run", "--node-name=a", "--healthcheck-port", "-1", "--feature-gates=TimeSlicingSettings=true,"])

    assert code == 3
    assert seen[0].node_name == "a"
    assert "TimeSlicingSettings" in seen[0].gates


@pytest.mark.parametrize("name", ["run", "inventory", "validate", "status", "completion"])
def test_the_help_of_a_command_has_examples(capsys, name):
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"usage: dra-driver {name}" in out
    assert "examples:" in out


def test_the_help_of_run_shows_environment_and_default(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")

    main(["run", "--help"])

    out = capsys.readouterr().out
    assert "($CDI_ROOT; default: /etc/cdi)" in out
    assert "($NODE_NAME; required)" in out


def test_completion_of_an_unknown_shell_is_refused(capsys):
    assert main(["completion", "fish"]) == 2
    error = capsys.readouterr().err
    assert all(shell in error for shell in ("fish", "bash", "zsh", "tcsh"))


def test_importing_the_command_line_loads_no_heavy_library():
    script = (
        "import sys, dra_driver.commands.main\n"
        "heavy = {'rich', 'kubernetes', 'grpc', 'pynvml', 'pydantic', 'yaml', 'shtab', 'sqlite3', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "[]\n"


def test_reading_the_settings_of_run_loads_no_heavy_library():
    script = (
        "import sys\n"
        "from dra_driver.commands.main import main\n"
        "code = main(['run', '--node-name=A'])\n"
        "heavy = {'rich', 'kubernetes', 'grpc', 'pynvml', 'pydantic', 'yaml', 'shtab', 'sqlite3', 'difflib'}\n"
        "print(code, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout == "2 []\n"


def test_the_module_runs_as_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "rum"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


def test_arguments_are_the_processs_own_by_default(monkeypatch, capsys):
    monkeypatch.setattr(main_module.sys, "argv", ["dra-driver", "--version"])

    assert main() == 0
    assert capsys.readouterr().out.startswith("dra-driver ")
