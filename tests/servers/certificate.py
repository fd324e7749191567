"""A self-signed certificate for the TLS port of a test server."""

import subprocess
from pathlib import Path

from tests.servers import program


class Certificate:
    """For localhost and 127.0.0.1; it is its own authority. `path` is what a client has to trust."""

    password = "keystore"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "certificate.pem"
        self.key_path = folder / "key.pem"
        self.keystore_path = folder / "keystore.p12"
        openssl = program("openssl")
        request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=localhost"]
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        _run([*request, *names, "-out", self.path, "-keyout", self.key_path])
        password = ["-passout", f"pass:{self.password}"]
        pair = ["-in", str(self.path), "-inkey", str(self.key_path)]
        _run([openssl, "pkcs12", "-export", *pair, *password, "-out", self.keystore_path])


def _run(command: list[str | Path]) -> None:
    subprocess.run(command, check=True, capture_output=True)
