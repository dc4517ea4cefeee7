"""A TCP proxy that can lose bytes, hold them back, or say nothing, as a connection does that one end has given up."""

import select
import socket
import threading
import time


class Proxy:
    """Passes bytes between whoever connects and a server, in the way that `mode` says at that moment.

    `pass`, `slow` (each piece waits), `deaf` (what the client sends is lost), `dumb` (what the server sends is lost),
    `silent` (both), `refuse` (connections are closed at once). `after` bytes of the server's a connection turns dumb.
    """

    def __init__(self, server):
        self.server, self.mode, self.after = server, "pass", None
        self.delay_seconds = 0.2
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.open = True
        self.connections = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while self.open:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            if self.mode == "refuse":
                client.close()
                continue
            self.connections.append(client)
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        try:
            server = socket.create_connection(("127.0.0.1", self.server))
        except OSError:
            client.close()
            return
        self.connections.append(server)
        down = 0
        try:
            while True:
                ready, _, _ = select.select([client, server], [], [], 0.5)
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    up = end is client
                    if self.mode == "slow":
                        time.sleep(self.delay_seconds)
                    lost = self.mode == "silent" or self.mode == ("deaf" if up else "dumb")
                    if not up and self.after is not None:
                        kept = data[: max(0, self.after - down)]
                        down += len(data)
                        data = kept
                    if data and not lost:
                        (server if up else client).sendall(data)
        except OSError:
            pass
        finally:
            client.close()
            server.close()

    def close(self):
        self.open = False
        self.listener.close()
        for connection in self.connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
