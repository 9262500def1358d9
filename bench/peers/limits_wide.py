"""The limit of a drain: one table of the queue's width, filled, claimed and finished by bare statements."""

from bench.peers.limits import Wide
from bench.peers.program import serve

if __name__ == "__main__":
    serve(Wide())
