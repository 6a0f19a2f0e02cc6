"""Certificates, keys, authorities and tokens are read again when their files change, seen by real handshakes."""

import http.client
import ssl
import urllib.error
import urllib.request

import grpc
import pytest
import trustme

from ratelimit_mw.service.access import ReadAgain
from tests.support.patience import WITHIN, eventually
from tests.support.service import RULES, Serving, asking, request, rules_at

TOKENS = {name: f"{name}-0123456789abcdef" for name in ("old", "new")}


class Deployment:
    """Two authorities, each with a certificate of the service and one of a client. The files are those of one."""

    FLAGS = ("--tls-cert", "srv.pem", "--tls-key", "srv.key", "--client-ca", "ca.pem", "--token-file", "tokens")

    def __init__(self, folder):
        self.folder = folder
        self.authorities = {name: trustme.CA() for name in TOKENS}
        for name, authority in self.authorities.items():
            for end, issued in (("srv", authority.issue_cert("127.0.0.1")), ("cli", authority.issue_cert("envoy"))):
                issued.private_key_pem.write_to_path(folder / f"{name}-{end}.key")
                (folder / f"{name}-{end}.pem").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
            authority.cert_pem.write_to_path(folder / f"{name}-ca.pem")
            (folder / f"{name}-tokens").write_text(f"admin {TOKENS[name]}\n")
        for path in ("srv.pem", "srv.key", "ca.pem", "tokens"):
            self.put("old", path)

    def put(self, name, path):
        """Replace a file at once, as an operator of certificates does."""
        new = self.folder / "new"
        new.write_bytes((self.folder / f"{name}-{path}").read_bytes())
        new.replace(self.folder / path)

    def path(self, name):
        return str(self.folder / name)

    @property
    def words(self):
        return [word if word.startswith("--") else self.path(word) for word in self.FLAGS]

    def passes(self, service, port, name):
        """Whether a client that trusts and shows the certificates of this authority, and its token, is answered."""
        token = f"Bearer {TOKENS[name]}"
        if port == "grpc":
            files = [(self.folder / f"{name}-{end}").read_bytes() for end in ("ca.pem", "cli.key", "cli.pem")]
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(service.grpc, grpc.ssl_channel_credentials(*files), options) as channel:
                try:
                    return bool(asking(channel)(request("shop"), timeout=WITHIN, metadata=[("authorization", token)]))
                except grpc.RpcError as error:
                    return error.code() == grpc.StatusCode.INVALID_ARGUMENT  # it has no descriptor
        context = ssl.create_default_context(cafile=self.path(f"{name}-ca.pem"))
        if port == "http":  # the admin port asks for no certificate
            context.load_cert_chain(self.path(f"{name}-cli.pem"), self.path(f"{name}-cli.key"))
        url = f"https://{service.addresses[port]}/{'json' if port == 'http' else 'stats'}"
        asked = urllib.request.Request(url, headers={"Authorization": token})
        try:
            with urllib.request.urlopen(asked, timeout=WITHIN, context=context):
                return True
        except urllib.error.HTTPError as error:
            with error:
                return error.code == 400  # it has no body
        except (OSError, http.client.HTTPException):
            return False


PORTS = ("grpc", "http", "admin")


def test_new_files_serve_new_connections_of_all_ports_and_a_pair_that_does_not_fit_changes_nothing(tmp_path):
    made = Deployment(tmp_path)

    def passing(name):
        return [port for port in PORTS if made.passes(service, port, name)]

    def logged(text):
        return any(text in line for line in service.lines)

    with Serving(rules_at(tmp_path, RULES), *made.words) as service:
        assert (passing("old"), passing("new")) == ([*PORTS], [])
        made.put("new", "srv.pem")
        eventually(lambda: logged("the certificates can't be used, so the previous ones stay in force"))
        assert passing("old") == [*PORTS]
        made.put("new", "srv.key")
        made.put("new", "ca.pem")
        made.put("new", "tokens")
        eventually(lambda: logged("the certificates have changed") and logged("the tokens have changed"))
        eventually(lambda: passing("new") == [*PORTS])
        assert passing("old") == []
        assert logged("a caller of --http or --admin was refused in its TLS handshake: ")
        assert not any(token in line for token in TOKENS.values() for line in service.lines)


@pytest.mark.parametrize("path", ["livez", "readyz"])
def test_the_probes_of_the_admin_port_need_neither_a_client_certificate_nor_a_token(tmp_path, path):
    made = Deployment(tmp_path)
    context = ssl.create_default_context(cafile=made.path("old-ca.pem"))
    with Serving(rules_at(tmp_path, RULES), *made.words, "--grpc", "off") as service:
        url = f"https://{service.addresses['admin']}/{path}"
        with urllib.request.urlopen(url, timeout=WITHIN, context=context) as answer:
            assert answer.status == 200


def test_files_are_read_again_once_they_can_be_read(tmp_path):
    path = tmp_path / "srv.key"
    path.mkdir()
    reads = []
    again = ReadAgain("the certificates", [path], lambda: reads.append(path.read_text()))
    again.look()
    assert reads == []
    path.rmdir()
    path.write_text("key")
    again.look()
    again.look()
    assert reads == ["key"]
