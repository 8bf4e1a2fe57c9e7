import contextlib
import http.client
import json
import ssl

import pytest

from dra_driver.webhook.certificates import Certificate
from dra_driver.webhook.http import application
from dra_driver.webhook.reviews import Verdict
from dra_driver.webhook.server import Server
from hack.cluster.certificates import Authority


@pytest.fixture(scope="session")
def authority():
    return Authority("webhook-tests")


@pytest.fixture
def files(tmp_path, authority):
    """A directory with tls.crt and tls.key, and a way to put others there: ``files.renew()``, ``files.write(...)``."""

    class Files:
        certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"

        def renew(self, authority=authority):
            pair = authority.server("webhook", ["localhost"], ["127.0.0.1"])
            self.certificate.write_text(pair.certificate)
            self.key.write_text(pair.key)
            return ssl.PEM_cert_to_DER_cert(pair.certificate)

    found = Files()
    found.first = found.renew()
    return found


class Client:
    """One connection to the webhook, as the API server has it."""

    def __init__(self, port, authority):
        context = ssl.create_default_context(cadata=authority.pair.certificate)
        self.connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)

    def ask(self, method="GET", path="/readyz", body=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read().decode()

    def review(self, body, **headers):
        headers = {"Content_Type": "application/json"} | headers
        status, text = self.ask("POST", "/validate-resource-claim-parameters", body, **headers)
        return status, json.loads(text) if status == 200 else text

    @property
    def certificate(self):
        """What the server has shown on this connection, in DER."""
        return self.connection.sock.getpeercert(binary_form=True)


@pytest.fixture
def serve(files, authority):
    """Starts a webhook that answers with ``judge``; hands out clients."""
    with contextlib.ExitStack() as stack:

        class Webhook:
            certificate = Certificate(files.certificate, files.key)

            def __init__(self, judge=lambda review: Verdict()):
                app = application(judge, lambda: self.certificate.trouble)
                self.server = Server(app, 0, self.certificate.context)
                self.server.start()
                stack.callback(self.server.stop)

            def client(self):
                found = Client(self.server.port, authority)
                stack.callback(found.connection.close)
                return found

        yield Webhook
