"""A Google Cloud Storage server on loopback, for tests of what is kept on `gs://`.

It is gcp-storage-emulator with what it lacks and the lock of a run needs: `ifGenerationMatch`,
under which an object is written or deleted only where it is the one that was read (0: where there
is none), and `x-goog-generation`, which says which one was read. One request is served at a time,
so that the check and the write are one.
"""

import contextlib
import functools
import http.server
import sys
import threading
import urllib.parse
from collections.abc import Iterator

from gcp_storage_emulator import server, storage
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets

NAME = "bucket"


class Handler(server.RequestHandler):
  """Refuses a write or deletion whose precondition does not hold."""

  def log_message(self, *args) -> None:
    """Says nothing."""

  def end_headers(self) -> None:
    """Adds the generation of an object that is read."""
    bucket, name = self._object()
    if self.command == "GET" and name:
      with contextlib.suppress(NotFound):
        self.send_header("x-goog-generation", self.storage.get_file_obj(bucket, name)["generation"])
    super().end_headers()

  def do_POST(self) -> None:  # noqa: N802
    self._if_it_matches(super().do_POST)

  def do_DELETE(self) -> None:  # noqa: N802
    self._if_it_matches(super().do_DELETE)

  def _object(self) -> tuple[str, str]:
    """The bucket and the object that a request is about; "" where that stands in its body."""
    address = urllib.parse.urlsplit(self.path)
    named = urllib.parse.parse_qs(address.query).get("name", [""])[0]
    bucket, _, rest = address.path.partition("/b/")[2].partition("/o")
    return bucket, named or urllib.parse.unquote(rest.removeprefix("/"))

  def _if_it_matches(self, answer) -> None:
    wanted = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("ifGenerationMatch")
    try:
      found = self.storage.get_file_obj(*self._object())["generation"]
    except NotFound:
      found = "0"
    if wanted in (None, [found]):
      answer()
      return
    self.rfile.read(int(self.headers.get("Content-Length") or 0))
    self.send_response(412)
    self.send_header("Content-Length", "0")
    self.end_headers()


class Quiet(http.server.HTTPServer):
  """Does not tell of clients that went before they had their answer."""

  def handle_error(self, *_) -> None:
    if not isinstance(sys.exception(), ConnectionError):
      super().handle_error(*_)


@contextlib.contextmanager
def serving() -> Iterator[dict[str, str]]:
  """Serves the bucket NAME while the block lasts; gives the environment in which programs find it."""
  kept = storage.Storage(use_memory_fs=True)
  buckets.create_bucket(NAME, kept)
  with Quiet(("localhost", 0), functools.partial(Handler, kept)) as http_server:
    thread = threading.Thread(target=http_server.serve_forever, daemon=True)
    thread.start()
    address = f"http://localhost:{http_server.server_address[1]}"
    try:
      yield {"STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}
    finally:
      http_server.shutdown()
      thread.join()
