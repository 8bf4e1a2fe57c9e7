import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading

import pytest

from dra_driver.commands.main import main
from dra_driver.model.errors import SettingError
from dra_driver.webhook.http import VALIDATE
from dra_driver.webhook.server import Server
from tests.unit.webhook.builders import config, encoded, parameters, review


def test_stop_lets_a_question_be_answered_that_is_there(serve):
    webhook = serve()
    connection, body = webhook.client().connection, encoded(review())
    connection.putrequest("POST", VALIDATE)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(body)))
    connection.putheader("Expect", "100-continue")
    connection.endheaders()
    assert connection.sock.recv(1000).startswith(b"HTTP/1.1 100")  # so it is being read
    stopping = threading.Thread(target=webhook.server.stop)
    stopping.start()
    wait_refused(webhook.server.port)

    connection.send(body)

    answer = connection.getresponse()
    answer.read()
    connection.close()
    stopping.join(20)

    assert answer.status == 200
    assert not webhook.server.alive


def wait_refused(port):
    """Until nobody listens any more."""
    with contextlib.suppress(ConnectionRefusedError):
        while True:
            socket.create_connection(("127.0.0.1", port), timeout=20).close()


def test_nobody_listens_after_the_stop(serve):
    webhook = serve()
    port = webhook.server.port
    webhook.server.stop()
    webhook.server.stop()

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_plain_http_and_old_tls_are_turned_away_and_do_no_harm(serve):
    webhook = serve()
    with socket.create_connection(("127.0.0.1", webhook.server.port), timeout=20) as plain:
        plain.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" not in plain.recv(100)
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", webhook.server.port), timeout=20) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw)

    assert webhook.client().ask()[0] == 200


def test_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=f"--port {port} cannot be used"):
            Server(lambda *_: None, port, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


# The command.


@pytest.mark.parametrize("port", ["-1", "65536", "https", ""])
def test_port_that_is_none_is_wrong_usage(files, port, capsys):
    flags = [f"--tls-cert-file={files.certificate}", f"--tls-private-key-file={files.key}", f"--port={port}"]

    assert main(["webhook", *flags]) == 2
    assert f'invalid value for --port: "{port}"' in capsys.readouterr().err


def test_command_wants_certificate_and_key(capsys):
    assert main(["webhook"]) == 2
    assert "--tls-cert-file" in capsys.readouterr().err


def test_missing_certificate_is_named(tmp_path, capsys):
    flags = [f"--tls-cert-file={tmp_path / 'none'}", f"--tls-private-key-file={tmp_path / 'none'}"]

    assert main(["webhook", *flags, "--port=0"]) == 2
    assert f"{tmp_path / 'none'} cannot be read: No such file or directory" in capsys.readouterr().err


@pytest.fixture
def process(files):
    """Starts the command with an environment; the process and its port."""
    started = []

    def start(**environ):
        flags = [f"--tls-cert-file={files.certificate}", f"--tls-private-key-file={files.key}", "--port=0"]
        command = [sys.executable, "-m", "dra_driver", "webhook", *flags]
        found = subprocess.Popen(command, env={**os.environ, **environ}, stderr=subprocess.PIPE, text=True)
        started.append(found)
        for line in found.stderr:
            if "serving HTTPS on port" in line:
                return found, int(line.split()[-1])
        raise AssertionError(f"it ended with {found.wait()}")

    yield start
    for found in started:
        found.kill()
        found.communicate()


@pytest.mark.parametrize(("gates", "allowed"), [("", False), ("TimeSlicingSettings=true", True)])
def test_command_judges_by_the_gates_of_its_environment(process, authority, gates, allowed):
    from tests.unit.webhook.conftest import Client

    _, port = process(FEATURE_GATES=gates)
    client = Client(port, authority)

    _, answer = client.review(encoded(review(config(parameters()))))

    client.connection.close()
    assert answer["response"]["allowed"] is allowed


def test_command_takes_up_a_new_certificate_by_itself_and_ends_by_a_signal(process, files, authority):
    from tests.unit.webhook.conftest import Client

    found, port = process()
    second = files.renew()
    for line in found.stderr:
        if "certificate changed" in line:
            break
    client = Client(port, authority)
    client.ask()
    assert client.certificate == second
    client.connection.close()

    found.send_signal(signal.SIGTERM)

    assert found.wait(20) == 0
    assert "signal SIGTERM: stopping" in found.stderr.read()
